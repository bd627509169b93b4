"""Two groups of two ranks with an intercommunicator between them. `intercommunicator.py HOW RANK`: made by `Create_intercomm`
or through a port; that rank calls `MPI_Abort` on it with 5, and the others wait for it."""

import sys

from mpi4py import MPI

how, caller = sys.argv[1], int(sys.argv[2])
world = MPI.COMM_WORLD
group = world.rank // 2
own = world.Split(group, world.rank)
if how == "created":
    between = own.Create_intercomm(0, world, 2 - 2 * group, 7)
else:
    port = world.bcast(MPI.Open_port() if world.rank == 0 else None)
    between = own.Connect(port) if group else own.Accept(port)
assert between.Get_remote_size() == 2
world.Barrier()
if world.rank == caller:
    between.Abort(5)
world.Barrier()
