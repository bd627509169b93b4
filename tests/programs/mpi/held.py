"""A rank of Open MPI with descendants, which `tree` has left to it. `held.py [--exit CODE | --signal N]`

It enters MPI and makes `RANK.leader` in RANKRUN_TEST_DIR. Rank 1 meets its fate when the file `go` is there; the others stay."""

import os
import signal
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
directory = os.environ["RANKRUN_TEST_DIR"]
open(os.path.join(directory, "%d.leader" % world.rank), "w").close()
if world.rank == 1 and sys.argv[1:]:
    while not os.path.exists(os.path.join(directory, "go")):
        time.sleep(0.005)
    kind, number = sys.argv[1], int(sys.argv[2])
    if kind == "--signal":
        os.kill(os.getpid(), number)
    os._exit(number)
while True:
    signal.pause()
