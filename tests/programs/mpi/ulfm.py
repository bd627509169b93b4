"""Ranks that handle the failure of others (ULFM). `ulfm.py rank N`: rank N is killed. `ulfm.py node N`: the node of rank N is lost, with its agent
and guard. The others end with 0 when they have revoked the world, shrunk it, agreed and added up. `ulfm.py replace N`: rank N is killed, and
the others start another one in its place."""

import os
import signal
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
how, victim = sys.argv[1], int(sys.argv[2])
if how == "new":
    merged = MPI.Comm.Get_parent().Merge(high=True)
    print(f"new {merged.rank} of {merged.size}, {merged.allreduce(1)}", flush=True)
    sys.exit()
agents = world.allgather(os.getppid())
dead = [r for r in range(world.size) if (agents[r] == agents[victim] if how == "node" else r == victim)]


def parent(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


world.Barrier()
if world.rank == victim:
    if how == "node":
        agent = os.getppid()
        guard = parent(agent)
        # It must not tell that its guard is gone.
        os.kill(agent, signal.SIGSTOP)
        os.kill(guard, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    world.Barrier()
except MPI.Exception:
    pass
try:
    world.Revoke()
except MPI.Exception:
    pass
assert world.Is_revoked()
rest = world.Shrink()
# The ranks of a node are lost one after another.
while rest.size > world.size - len(dead):
    rest = rest.Shrink()
agreed = rest.Agree(rest.rank | 4)
total = rest.allreduce(1)
failed = world.Get_failed().size
if how == "replace":
    merged = rest.Spawn(sys.executable, [__file__, "new", "0"], maxprocs=len(dead)).Merge(high=False)
    total = merged.allreduce(1)
MPI.Finalize()
print(f"{agreed} {total} {failed}", flush=True)
