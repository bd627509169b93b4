"""seeds/003: one of four workers fails; its successor has all that it had, and everybody rejoins."""

import os
import sys

import torch
import torch.distributed as dist

attempt = int(os.environ["RANKRUN_ATTEMPT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([rank])
dist.all_reduce(total)
if attempt == 0 and rank == 2:
    sys.exit(9)
if attempt == 0:
    # It waits for the one that has failed.
    dist.barrier()
print(
    f"rank {rank} of {dist.get_world_size()}, local {os.environ['LOCAL_RANK']} of {os.environ['LOCAL_WORLD_SIZE']}, "
    f"attempt {attempt}, {os.environ['DATA']}, sum {total.item()}",
    flush=True,
)
dist.destroy_process_group()
