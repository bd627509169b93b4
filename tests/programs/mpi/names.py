"""Ranks that publish a name, look it up, connect through it, and make a communicator of a session."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD


def error_class(call, *arguments):
    try:
        return "no error: %r" % call(*arguments)
    except MPI.Exception as error:
        return error.Get_error_class()


# A lookup does not wait for a name.
assert error_class(MPI.Lookup_name, "service") == MPI.ERR_NAME
world.Barrier()
if world.rank == 0:
    port = MPI.Open_port()
    MPI.Publish_name("service", port)
    assert isinstance(error_class(MPI.Publish_name, "service", port), int)
    assert MPI.Lookup_name("service") == port
    world.Barrier()
    other = MPI.COMM_SELF.Accept(port)
    other.Disconnect()
    MPI.Unpublish_name("service", port)
    assert error_class(MPI.Unpublish_name, "service", port) == MPI.ERR_SERVICE
    MPI.Close_port(port)
else:
    world.Barrier()
    if world.rank == 1:
        other = MPI.COMM_SELF.Connect(MPI.Lookup_name("service"))
        print("connected to %d" % other.Get_remote_size())
        other.Disconnect()
world.Barrier()
assert error_class(MPI.Lookup_name, "service") == MPI.ERR_NAME

session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
together = MPI.Intracomm.Create_from_group(group, "rankrun")
print("sum %d" % together.allreduce(together.rank), flush=True)
together.Free()
group.Free()
session.Finalize()
