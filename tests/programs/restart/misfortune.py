"""A rank to which something happens: `misfortune.py SEED ATTEMPTS`. The same seed does the same in the same attempt.

A rank and all that it starts hold a lock of their attempt. Whoever finds one of an earlier attempt held writes that to the
file `wrong`: two attempts overlap, or a process of the former one is left.
"""

import fcntl
import os
import random
import signal
import sys
import time

seed, attempts = sys.argv[1], int(sys.argv[2])
attempt, rank, size = (int(os.environ["RANKRUN_" + name]) for name in ("ATTEMPT", "RANK", "WORLD_SIZE"))


def append(path, line):
    # One write of few bytes: lines of several ranks do not mix.
    with open(path, "a") as file:
        file.write(line + "\n")


def hold(path):
    held = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    os.set_inheritable(held, True)


def check():
    for name in os.listdir("."):
        words = name.split("-")
        if words[0] == "lock" and int(words[1]) < attempt:
            with open(name) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    append("wrong", f"attempt {attempt} rank {rank}: {name} is held")


def leave(chance):
    """A process that lives on: in a session of its own, or as an orphan, and perhaps one that ignores SIGTERM."""
    kind = chance.randrange(4)
    if os.fork() != 0:
        return
    if kind > 0:
        os.setsid()
    if kind > 1 and os.fork() != 0:
        os._exit(0)
    if kind > 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    os._exit(0)


hold(f"lock-{attempt}-{rank}")
check()
append("seen", str(attempt))
if attempt >= attempts:
    sys.exit(0)
chance = random.Random(f"{seed}-{attempt}-{rank}")
for _ in range(chance.randrange(3)):
    leave(chance)
time.sleep(chance.random() * 0.03)
if rank != random.Random(f"{seed}-{attempt}").randrange(size):
    fate = chance.randrange(4)
    if fate == 0:
        sys.exit(0)
    if fate == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
fate = chance.randrange(6)
if fate < 4:
    os.kill(os.getpid(), (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP)[fate])
    time.sleep(600)
sys.exit(30 + fate)
