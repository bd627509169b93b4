"""A rank whose helper writes its checkpoint while the rank fails: writer.py DIRECTORY HOW. Rank 0 waits; rank 1 fails by HOW: exit or kill."""

import os
import signal
import sys
import time

directory, how = sys.argv[1], sys.argv[2]
rank = os.environ["RANKRUN_RANK"]

if rank == "0":
    time.sleep(600)
ready, written = os.pipe()
if os.fork() == 0:
    # As a process of torch.distributed.checkpoint's async_save does: it has no handler, and takes longer than --linger and --grace.
    path = f"{directory}/checkpoint"
    with open(path + ".part", "wb") as file:
        for part in range(70):
            file.write(b"x" * 65536)
            file.flush()
            os.fsync(file.fileno())
            if part == 0:
                os.write(written, b".")
            time.sleep(0.1)
    os.rename(path + ".part", path)
    os._exit(0)
os.read(ready, 1)
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(3)
