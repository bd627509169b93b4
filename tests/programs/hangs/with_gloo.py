"""A job of torch.distributed with gloo that hangs in a certain way."""

import sys
import time

import torch
import torch.distributed as dist


def load():
    while True:
        time.sleep(60)


def reduce_gradients():
    dist.all_reduce(torch.ones(4))


def main():
    kind = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() // 2:
        if kind == "never_enters":
            load()
        if kind == "receives":
            dist.recv(torch.ones(4), src=0)
    reduce_gradients()


main()
