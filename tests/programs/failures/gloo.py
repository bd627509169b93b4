"""A rank of a torch program. `gloo.py FATE RANK`: that rank meets the fate, the others wait for it in an all-reduce."""

import atexit
import os
import sys
import time

import torch
import torch.distributed as dist

import plain


def linger():
    """Its connections are closed, and it is still there when the others find that out."""
    dist.destroy_process_group()
    directory = os.environ["RANKRUN_TEST_DIR"]
    bound = time.monotonic() + 20
    while not any(name.endswith(".lost") for name in os.listdir(directory)) and time.monotonic() < bound:
        time.sleep(0.001)
    time.sleep(float(sys.argv[3]))


fate = sys.argv[1]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if os.environ["RANKRUN_RANK"] == sys.argv[2]:
    if fate == "late-exit":
        atexit.register(linger)
        raise ValueError("failure!")
    plain.meet(fate)
try:
    while True:
        dist.all_reduce(torch.ones(4))
except RuntimeError:
    open(os.path.join(os.environ["RANKRUN_TEST_DIR"], os.environ["RANKRUN_RANK"] + ".lost"), "w").close()
    raise
