"""A rank of a plain Python program. `plain.py FATE RANK`: that rank meets the fate when all are up, the others wait."""

import atexit
import os
import signal
import subprocess
import sys
import time


def hoard():
    """Takes memory until there is none."""
    kept = []
    while True:
        kept.append(b"x" * (1 << 20))


def stop_by_another():
    """Is stopped by another process, and lives on."""
    subprocess.run(["kill", "-STOP", str(os.getpid())])
    while True:
        signal.pause()


def never_end():
    """An exit handler that waits for something that does not come."""
    while True:
        signal.pause()


def fail_to_tell(kind, error, traceback):
    raise RuntimeError("the hook failed")


def meet(fate):
    if fate == "exception":
        raise ValueError("failure!")
    if fate == "exit-code":
        sys.exit(3)
    if fate in ("sigsegv", "sigkill", "sigabrt", "sigterm"):
        os.kill(os.getpid(), getattr(signal, fate.upper()))
    if fate == "sigstop":
        stop_by_another()
    if fate.startswith("abort="):
        import rankrun

        rankrun.abort(int(fate[6:]))
    if fate == "stuck-in-exit-handlers":
        atexit.register(never_end)
        raise ValueError("failure!")
    if fate == "out-of-memory":
        hoard()
    if fate == "failing-hook":
        sys.excepthook = fail_to_tell
        raise ValueError("failure!")
    raise AssertionError(fate)


def wait_for_all():
    """Every rank has a file in the directory of the test."""
    directory, size = os.environ["RANKRUN_TEST_DIR"], int(os.environ["RANKRUN_WORLD_SIZE"])
    open(os.path.join(directory, os.environ["RANKRUN_RANK"] + ".up"), "w").close()
    while not all(os.path.exists(os.path.join(directory, "%d.up" % rank)) for rank in range(size)):
        time.sleep(0.005)


if __name__ == "__main__":
    wait_for_all()
    if os.environ["RANKRUN_RANK"] == sys.argv[2]:
        meet(sys.argv[1])
    while True:
        signal.pause()
