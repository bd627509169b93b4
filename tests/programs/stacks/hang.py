"""Hangs in the way that its argument names."""

import ctypes
import sys
import threading
import time


class Loader:
    def fetch(self):
        def inner():
            time.sleep(1000)

        inner()


def waits_for_ever():
    threading.Event().wait()


def descend(depth):
    if depth:
        return descend(depth - 1)
    # Back through C: the frames of two calls of the evaluation loop.
    return sorted([1, 2], key=lambda _: Loader().fetch())


def spins():
    while True:
        pass


way = sys.argv[1]
if way == "sleep":
    threading.Thread(target=waits_for_ever, daemon=True).start()
    descend(3)
elif way == "spin":
    spins()
elif way == "threads":
    threading.Thread(target=waits_for_ever).start()
elif way == "gone":
    libc = ctypes.CDLL(None)
    ctypes.pythonapi.Py_AtExit(ctypes.cast(libc.pause, ctypes.c_void_p))
elif way == "größe":
    exec(compile("def größe():\n    import time\n    time.sleep(1000)\n\n\ngröße()\n", "/tmp/数.py", "exec"))
