"""A rank that enters MPI when the file `go` is there. Rank 0 writes the address of its PMIx server into `address` before."""

import os
import time

directory = os.environ["RANKRUN_TEST_DIR"]
if os.environ["PMIX_RANK"] == "0":
    with open(os.path.join(directory, "address"), "w") as file:
        file.write(os.environ["PMIX_SERVER_URI3"] + "\n")
while not os.path.exists(os.path.join(directory, "go")):
    time.sleep(0.005)

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Barrier()
print("rank %d of %d" % (world.rank, world.size))
