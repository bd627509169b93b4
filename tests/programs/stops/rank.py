"""A rank that shows with which signals it is ended. `RANK.up` in RANKRUN_TEST_DIR says that it is ready."""

import atexit
import os
import signal
import sys
import time

rank = os.environ["RANKRUN_RANK"]
directory = os.environ["RANKRUN_TEST_DIR"]


def up():
    open(os.path.join(directory, rank + ".up"), "w").close()


def say(text):
    print("rank %s: %s" % (rank, text), flush=True)


def note_signals(last):
    """Says which signals come, and ends at the one that is called `last`, if there is one."""

    def handler(number, frame):
        name = signal.Signals(number).name
        say(name)
        if name == last:
            os._exit(0)

    for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1"):
        signal.signal(getattr(signal, name), handler)
    up()
    while True:
        time.sleep(60)


def interrupted():
    """An ordinary program that cleans up."""
    atexit.register(say, "atexit")
    try:
        up()
        time.sleep(600)
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
        raise
    finally:
        say("finally")


def in_mpi():
    """Rank 0 computes in Python, the others are blocked in a call that never looks at signals."""
    from mpi4py import MPI

    if rank == "0":
        interrupted()
    up()
    MPI.COMM_WORLD.Barrier()


def save(directory, seconds):
    """On SIGTERM, writes a checkpoint for so long."""

    def handler(number, frame):
        path = os.path.join(directory, "checkpoint." + rank)
        until = time.monotonic() + float(seconds)
        with open(path, "wb", buffering=0) as file:
            while time.monotonic() < until:
                file.write(b"x" * 65536)
                time.sleep(0.05)
        say("saved")
        os._exit(0)

    signal.signal(signal.SIGTERM, handler)
    up()
    while True:
        time.sleep(60)


def chatter():
    """Ignores SIGTERM, uses the CPU, and talks."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    up()
    while True:
        say("x" * 200)
        sum(range(100000))


def fail():
    """Fails when all others are up."""
    others = [str(other) for other in range(int(os.environ["RANKRUN_WORLD_SIZE"])) if str(other) != rank]
    while not all(os.path.exists(os.path.join(directory, other + ".up")) for other in others):
        time.sleep(0.01)
    os._exit(3)


{
    "note": note_signals,
    "interrupted": interrupted,
    "mpi": in_mpi,
    "save": save,
    "chatter": chatter,
    "fail": fail,
}[sys.argv[1]](*sys.argv[2:])
