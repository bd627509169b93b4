"""A rank whose pool worker takes more memory than its cgroup has. The rank itself lives, and says what it knows."""

import multiprocessing
import os
import subprocess
import sys


def take(_):
    return len(b"x" * (1 << 29))


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            list(pool.map(take, [0]))
    elif sys.argv[1] == "survived":
        code = subprocess.run([sys.executable, "-c", "b'x' * (1 << 29)"]).returncode
        print("the helper ended with %d" % code)
