import os
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
if world.rank == 1 and sys.argv[1:]:
    raise ValueError("rank 1 fails")
sys.stdout.write("[%d] sum %d of %d\n" % (world.rank, world.allreduce(world.rank + 1), world.size))
sys.stdout.flush()
