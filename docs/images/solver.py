"""A small MPI program for the picture in the README: rank 2 of 4 finds an error while the others wait for it."""

import subprocess
import time

from mpi4py import MPI

world = MPI.COMM_WORLD

# What many programs start on the way: a helper in a session of its own that ignores SIGTERM.
subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; : telemetry; done"], start_new_session=True)


def check(step, residual):
    if world.rank == 2 and step == 3:
        raise ValueError(f"residual {residual} after step {step}")


for step in range(1, 1000):
    time.sleep(0.1 + 0.01 * world.rank)
    residual = 0.8**step if step < 3 else float("nan")
    check(step, residual)
    world.allreduce(residual, MPI.MAX)
    print(f"step {step}: residual {residual:.4f}")
