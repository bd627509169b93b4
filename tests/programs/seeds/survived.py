from mpi4py import MPI

if MPI.COMM_WORLD.rank == 0:
    raise ValueError("failure!")
