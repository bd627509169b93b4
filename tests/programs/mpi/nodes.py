"""A rank among several nodes: says which ranks it shares memory with, and what all ranks together have computed."""

import socket

from mpi4py import MPI

world = MPI.COMM_WORLD
near = world.Split_type(MPI.COMM_TYPE_SHARED)
peers = near.allgather(world.rank)
# Each with each, so that every pair of ranks finds a way.
requests = [world.isend(world.rank * world.size + other, other) for other in range(world.size)]
heard = [world.recv(source=other) for other in range(world.size)]
MPI.Request.waitall(requests)
assert heard == [other * world.size + world.rank for other in range(world.size)], heard
# Too long for a message that is sent at once.
block = bytearray(1 << 20)
world.Bcast(block, root=world.size - 1)
print("%d/%d %s %s %d" % (world.rank, world.size, socket.gethostname(), peers, world.allreduce(world.rank)))
