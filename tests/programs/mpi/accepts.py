"""Rank 0 accepts rank 1 twice at one port."""

from mpi4py import MPI

world = MPI.COMM_WORLD
port = world.bcast(MPI.Open_port() if world.rank == 0 else None)
for turn in range(2):
    other = MPI.COMM_SELF.Accept(port) if world.rank == 0 else MPI.COMM_SELF.Connect(port)
    other.Disconnect()
    print(f"rank {world.rank} round {turn}", flush=True)
