"""Rank 0 says that it is up and sleeps. With `mpi` the others wait for it in a barrier, else they sleep too."""

import os
import sys
import time

barrier = None
if "mpi" in sys.argv:
    from mpi4py import MPI

    barrier = MPI.COMM_WORLD.Barrier
    barrier()
if os.environ["RANKRUN_RANK"] == "0":
    print("rank 0 is up", flush=True)
elif barrier is not None:
    barrier()
# A signal that comes just before a sleep begins does not end it: Python handles it after that.
while True:
    time.sleep(0.02)
