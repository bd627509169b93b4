from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
raise ValueError("failure!")
