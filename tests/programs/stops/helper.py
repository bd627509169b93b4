"""A rank whose helper process, another Python, fails and takes its time to end. The rank reports how it ended."""

import subprocess
import sys

where, seconds = sys.argv[1:]
if where == "mpi":
    from mpi4py import MPI

# Finalizers of a module's objects run when Python's own exit work is done; exit handlers are a part of that work.
FINALIZER = """
import sys, time
class Slow:
    def __del__(self, sleep=time.sleep): sleep(%s)
slow = Slow()
sys.exit(3)
"""
HANDLER = """
import atexit, sys, time
atexit.register(time.sleep, %s)
raise ValueError("bad input")
"""

for program, code in ((FINALIZER, 3), (HANDLER, 1)):
    got = subprocess.run([sys.executable, "-c", program % seconds], stderr=subprocess.DEVNULL).returncode
    if got != code:
        sys.exit("the helper ended with %d" % got)
if where == "mpi":
    MPI.COMM_WORLD.Barrier()
print("fine")
