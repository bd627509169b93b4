import sys

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 0:
    sys.exit(3)
MPI.COMM_WORLD.Barrier()
