"""An MPI world says what its sum is. In the first attempt it waits to be ended."""

import os
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print(f"{os.environ['RANKRUN_ATTEMPT']}: sum {total} of {world.size}", flush=True)
while os.environ["RANKRUN_ATTEMPT"] == "0":
    time.sleep(1)
