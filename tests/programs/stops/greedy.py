"""A rank whose pool worker takes more memory than its cgroup has. The rank itself lives, and says what it knows."""

import multiprocessing
import os
import subprocess
import sys
import time

wait = os.waitpid


def wait_late(pid, options):
    """Reaps a process half a second after its end: one that is reaped at once cannot be looked up any more."""
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | (options & os.WNOHANG)) is not None:
        time.sleep(0.5)
    return wait(pid, options)


def take(_):
    return len(b"x" * (1 << 29))


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        from concurrent.futures import ProcessPoolExecutor

        os.waitpid = wait_late
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(take, [0]))
    elif sys.argv[1] == "survived":
        helper = subprocess.Popen([sys.executable, "-c", "b'x' * (1 << 29)"])
        _, status = wait_late(helper.pid, 0)
        helper.returncode = -os.WTERMSIG(status)
        print("the helper ended with %d" % helper.returncode)
