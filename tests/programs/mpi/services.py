"""Ranks that find a published name (`MPI_Publish_name`), under any MPI. `services.py connect`: the last rank connects to rank 0 by it.

Intel MPI 2021.18 crashes in `MPI_Comm_disconnect` over hosts."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
last = world.size - 1
if world.rank == 0:
    port = MPI.Open_port()
    MPI.Publish_name("service", port)
else:
    port = None
world.Barrier()
port = world.bcast(port)
assert MPI.Lookup_name("service") == port
if sys.argv[1:] == ["connect"] and world.rank in (0, last):
    if world.rank == 0:
        other = MPI.COMM_SELF.Accept(port)
    else:
        other = MPI.COMM_SELF.Connect(MPI.Lookup_name("service"))
    print("rank %d heard %d" % (world.rank, other.sendrecv(world.rank, 0, source=0)))
    other.Disconnect()
world.Barrier()
if world.rank == last:
    # Any rank may take the name back.
    MPI.Unpublish_name("service", MPI.Lookup_name("service"))
world.Barrier()
try:
    MPI.Lookup_name("service")
except MPI.Exception:
    pass
else:
    raise AssertionError("the name is still there")
