"""The first rank ends after the start; the others go on to use the store."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
method = os.environ["METHOD"].format(**os.environ)
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.barrier()
if rank == 0:
    os._exit(0)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*address, is_master=False, timeout=timedelta(seconds=60))
store.set(f"rank {rank}", "here")
store.wait([f"rank {other}" for other in range(1, dist.get_world_size())])
print("met without the first rank")
os._exit(0)
