"""A module that opens a file when it is imported, and has read a part of it."""

import os

SIZE = 24
FILE = open(__file__, "rb", 0)
FILE.read(SIZE)
# It has its position in common with the first.
COPY = os.dup(FILE.fileno())
KEPT = os.open(__file__, os.O_RDONLY)
os.set_inheritable(KEPT, True)
