"""Ranks of Open MPI at one moment of their life, for ever. `moments.py init|barriers|finalize|after`

Each makes `RANK.up` in RANKRUN_TEST_DIR. In `init` and `finalize` rank 1 does not come, and the others wait for it."""

import os
import signal
import sys

moment, rank = sys.argv[1], int(os.environ["RANKRUN_RANK"])


def up():
    open(os.path.join(os.environ["RANKRUN_TEST_DIR"], "%d.up" % rank), "w").close()


def stay():
    while True:
        signal.pause()


if moment == "init":
    up()
    if rank == 1:
        stay()

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
if moment == "after":
    MPI.Finalize()
up()
if moment == "barriers":
    while True:
        world.Barrier()
if moment == "finalize" and rank != 1:
    MPI.Finalize()
stay()
