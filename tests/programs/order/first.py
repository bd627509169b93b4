"""Rank 1 raises first and needs 0.4 s to say what; rank 0 raises 0.1 s after it, and ends at once.

How rank 1 raises: `text` (its own text is computed), `value` (that of a value in it), `native` (in C code), `deep` (after many calls).
"""

import functools
import os
import sys
import time

SIGN = os.path.join(os.environ["RANKRUN_TEST_DIR"], "raised")


class Text(Exception):
    def __str__(self):
        time.sleep(0.4)
        return "first"


class Value:
    def __repr__(self):
        time.sleep(0.4)
        return "first"

    __str__ = __repr__


class Native(Exception):
    __str__ = staticmethod(functools.partial(time.sleep, 0.4))


def fall(depth):
    if depth == 0:
        raise ValueError("first")
    fall(depth - 1)


if os.environ["RANKRUN_RANK"] == "1":
    how = sys.argv[1]
    if how == "deep":
        sys.setrecursionlimit(10**6)
        try:
            fall(20000)
        except ValueError:
            # To leave so many calls takes a while on a busy machine.
            open(SIGN, "w").close()
            raise
    open(SIGN, "w").close()
    raise {"text": Text, "native": Native}[how]() if how != "value" else ValueError(Value())
while not os.path.exists(SIGN):
    time.sleep(0.001)
if os.environ["RANKRUN_RANK"] == "0":
    time.sleep(0.1)
    raise KeyError("second")
time.sleep(600)
