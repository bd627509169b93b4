"""A rank that enters MPI, makes `RANK.up` in RANKRUN_TEST_DIR, and waits for a message that nobody sends."""

import os

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
open(os.path.join(os.environ["RANKRUN_TEST_DIR"], "%d.up" % world.rank), "w").close()
world.recv(source=world.rank)
