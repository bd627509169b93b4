"""Four ranks that never meet: each hangs in a way of its own."""

import sys
import threading
import time

from mpi4py import MPI

import rankrun

world = MPI.COMM_WORLD
world.Barrier()

if world.rank == 0:
    print("before the barrier", flush=True)
    world.Barrier()
elif world.rank == 1:
    print("waiting for the data server", flush=True)
    time.sleep(1000)
elif world.rank == 2:
    rankrun.note("epoch 3, batch 1200")
    # The traceback without the frames of Python's own threading module.
    sys.tracebacklimit = 1

    def load():
        raise OSError("shard 17 cannot be read")

    threading.Thread(target=load).start()
    while True:
        time.sleep(0.1)
# Rank 3 ends, and waits for the others in MPI_Finalize.
