"""Rank 2 dies in the way that is named; the others go on without it."""

import os
import signal
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
world.Barrier()
if world.rank == 2:
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)
try:
    world.Barrier()
except MPI.Exception:
    # Of the lost rank, or of one that has revoked the communicator.
    pass
world.Ack_failed()
world.Revoke()
rest = world.Shrink()
print(f"rank {world.rank} of {world.size}: {rest.allreduce(1)} go on", flush=True)
