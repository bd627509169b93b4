"""A program of `cargo xtask bench warm`: notes when each rank is in its program, imports done. Usage: warm.py DIRECTORY MODULE HOW

HOW: `end`, or how rank 1 fails in the first attempt: `killed`, `raises`.
"""

import os
import sys
import time

__import__(sys.argv[2])

directory, how = sys.argv[1], sys.argv[3]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]


def note(name):
    with open(os.path.join(directory, name + ".new"), "w") as file:
        file.write("%d\n" % time.monotonic_ns())
    os.rename(os.path.join(directory, name + ".new"), os.path.join(directory, name))


note("%s.%s" % (attempt, rank))
if how != "end" and attempt == "0":
    if rank == "1":
        while not all(os.path.exists(os.path.join(directory, "0.%d" % other)) for other in range(int(os.environ["WORLD_SIZE"]))):
            time.sleep(0.005)
        note("failed")
        if how == "killed":
            os.kill(os.getpid(), 9)
        raise ValueError("failure")
    time.sleep(120)
