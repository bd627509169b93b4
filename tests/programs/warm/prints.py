"""A module that writes 1 MiB to each stream when it is imported."""

import sys

for stream in (sys.stdout, sys.stderr):
    stream.write((stream.name[4] * 63 + "\n") * (1 << 14))
