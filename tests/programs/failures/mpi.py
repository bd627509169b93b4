"""A rank of a program on mpi4py. `mpi.py FATE RANK`: that rank meets the fate, the others wait for it in a barrier."""

import os
import sys

import plain

fate = sys.argv[1]
is_fated = os.environ["RANKRUN_RANK"] == sys.argv[2]
if fate == "exit-before-init" and is_fated:
    os._exit(0)

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
if fate == "exit-after-finalize":
    MPI.Finalize()
    os._exit(0)
if is_fated:
    if fate == "exception":
        # The others do not wait for it, so that it can finalize.
        world.Barrier()
        raise ValueError("failure!")
    if fate == "exit-after-init":
        os._exit(0)
    if fate == "exit-code":
        os._exit(3)
    if fate == "stuck-in-finalize":
        raise ValueError("failure!")
    if fate.startswith("abort="):
        world.Abort(int(fate[6:]))
    plain.meet(fate)
world.Barrier()
