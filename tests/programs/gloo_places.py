"""Torch over gloo: each rank prints its number, its host and a sum over all ranks."""

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print(dist.get_rank(), socket.gethostname(), os.environ["LOCAL_RANK"], int(total), flush=True)
dist.destroy_process_group()
