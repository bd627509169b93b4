"""Each rank prints its number, its host, its number and the ranks of its node, and a sum over all ranks."""

import socket

from mpi4py import MPI

world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
hosts = set(node.allgather(socket.gethostname()))
total = world.allreduce(world.rank)
print(world.rank, socket.gethostname(), node.rank, node.size, len(hosts), total, flush=True)
