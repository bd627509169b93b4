"""Training of two ranks on data that DataLoader's processes prepare: prints the mean time of a step in microseconds, on rank 0.

    loader.py FILE STEPS

FILE is where the ranks meet: no launcher of MPI tells torch a rendezvous. It must not exist before.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    """Samples that cost their reader some time, as those of a file do."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        sample = torch.randn(3, 32, 32, generator=made)
        for _ in range(4):
            sample = torch.nn.functional.avg_pool2d(sample, 3, 1, 1)
        return sample, index % 10


def first_of(*names):
    return next(int(os.environ[name]) for name in names if name in os.environ)


def main():
    rank = first_of("RANKRUN_RANK", "RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
    size = first_of("RANKRUN_WORLD_SIZE", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
    steps, batch, warm_up = int(sys.argv[2]), 32, 5
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 30 * 30, 10)
    )
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples((steps + warm_up) * batch), batch_size=batch, num_workers=2)
    start = None
    for step, (samples, labels) in enumerate(loader):
        if step == warm_up:
            dist.barrier()
            start = time.monotonic()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        print(f"loader {(time.monotonic() - start) / steps * 1e6:.3f}", flush=True)
        print(f"{torch.get_num_threads()} threads", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
