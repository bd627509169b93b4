from mpi4py import MPI

if MPI.COMM_WORLD.rank == 0:
    import broken_module
MPI.COMM_WORLD.Barrier()
