#!/usr/bin/env python3
"""Runs all Python tests: `python3 tests/python/run.py [-v] [NAME...]`, where a name is as unittest takes it."""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    if sys.version_info < (3, 9):
        sys.exit("error: the tests need Python 3.9 or newer")
    sys.path.insert(0, HERE)
    verbosity = 2 if "-v" in sys.argv else 1
    names = [name for name in sys.argv[1:] if name != "-v"]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(HERE, top_level_dir=HERE)
    result = unittest.TextTestRunner(verbosity=verbosity, buffer=True).run(suite)
    # In CI what cannot run is a failure, as it is for the Rust tests.
    skipped = bool(result.skipped) and os.environ.get("CI") in ("1", "true")
    for test, reason in result.skipped:
        sys.stderr.write("skipped: {}: {}\n".format(test, reason))
    return 0 if result.wasSuccessful() and not skipped else 1


if __name__ == "__main__":
    sys.exit(main())
