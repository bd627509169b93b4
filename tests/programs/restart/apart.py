"""Ranks of gloo that come up seconds apart: `apart.py SECONDS LATE`. In the first attempt a rank fails when all have met."""

import os
import sys
import time

attempt, rank = int(os.environ["RANKRUN_ATTEMPT"]), int(os.environ["RANK"])
if attempt > 0 and rank == int(sys.argv[2]):
    time.sleep(float(sys.argv[1]))

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([rank + 10 * attempt])
dist.all_reduce(total)
if attempt == 0 and rank == 1:
    sys.exit(9)
dist.barrier()
print(f"rank {rank} attempt {attempt} sum {total.item()}", flush=True)
dist.destroy_process_group()
