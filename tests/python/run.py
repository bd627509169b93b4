#!/usr/bin/env python3
"""Runs all Python tests: `python3 tests/python/run.py [-v] [NAME...]`, where a name is as unittest takes it."""

import os
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

# No test lasts longer, unless it is broken: many times the longest one on a loaded machine.
BOUND = 300.0


def reset_signals():
    """Sets the signals as a shell has them for a command in the foreground.

    Whoever started us may ignore some: a shell that runs a script ignores SIGINT in what it starts with `&`. The programs
    that the tests start would ignore them too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGHUP", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGTSTP", "SIGTTIN", "SIGTTOU"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class TooLong(BaseException):
    """A test waits for something that does not come. No `except Exception` of a test may take this for its own."""


class BoundedResult(unittest.TextTestResult):
    """Bounds every wait of a test: those without a bound of their own end, and the test fails."""

    bound = BOUND

    def startTest(self, test):
        super().startTest(test)
        signal.signal(signal.SIGALRM, self._too_long)
        signal.setitimer(signal.ITIMER_REAL, self.bound)

    def stopTest(self, test):
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().stopTest(test)

    def _too_long(self, *_):
        raise TooLong("the test was still waiting after {} s".format(self.bound))


def main():
    reset_signals()
    if sys.version_info < (3, 9):
        sys.exit("error: the tests need Python 3.9 or newer")
    sys.path.insert(0, HERE)
    verbosity = 2 if "-v" in sys.argv else 1
    names = [name for name in sys.argv[1:] if name != "-v"]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(names) if names else loader.discover(HERE, top_level_dir=HERE)
    result = unittest.TextTestRunner(verbosity=verbosity, buffer=True, resultclass=BoundedResult).run(suite)
    # In CI what cannot run is a failure, as it is for the Rust tests.
    skipped = bool(result.skipped) and os.environ.get("CI") in ("1", "true")
    for test, reason in result.skipped:
        sys.stderr.write("skipped: {}: {}\n".format(test, reason))
    return 0 if result.wasSuccessful() and not skipped else 1


if __name__ == "__main__":
    sys.exit(main())
