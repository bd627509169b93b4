"""A group of torch says what its sum is. In the first attempt it waits to be ended."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print(f"{os.environ['RANKRUN_ATTEMPT']}: sum {total.item()} of {dist.get_world_size()}", flush=True)
while os.environ["RANKRUN_ATTEMPT"] == "0":
    time.sleep(1)
dist.destroy_process_group()
