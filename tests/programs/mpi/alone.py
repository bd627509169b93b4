"""A rank of Open MPI that enters MPI at once, or only loads the library (`mapped`)."""

import sys
import time

if sys.argv[1:] == ["mapped"]:
    import mpi4py

    mpi4py.rc.initialize = False
from mpi4py import MPI

if sys.argv[1:] == ["mapped"]:
    assert "libmpi.so.40" in open("/proc/self/maps").read()
    time.sleep(1)
    print("fine")
else:
    print("rank %d of %d" % (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size))
