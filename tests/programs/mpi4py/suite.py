"""Runs mpi4py's own tests, and writes what becomes of each in this rank.

suite.py OUTCOMES TESTS [ARGUMENT...]: TESTS is the directory `test` of mpi4py's sources, the arguments are those of its `main.py`.
Each line of OUTCOMES/RANK is a word and the name of a test; the last line of a test is its outcome, and a test that has begun and
has no other line has not ended.
"""

import os
import sys
import unittest

outcomes, tests = sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, tests)
sys.argv[:3] = [os.path.join(tests, "main.py")]

import main  # noqa: E402  # it is in TESTS


class Outcomes(unittest.TextTestResult):
    """Writes each outcome when it is known, so that those before a crash are there."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        from mpi4py import MPI

        self.file = open(os.path.join(outcomes, str(MPI.COMM_WORLD.Get_rank())), "w", buffering=1, encoding="utf-8")

    def write(self, word, test):
        # A description can have more than one line; the name has not.
        print(word, test.id(), file=self.file)

    def startTest(self, test):
        super().startTest(test)
        self.write("begun", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.write("passed", test)

    def addError(self, test, err):
        super().addError(test, err)
        self.write("error", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.write("failed", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.write("skipped", test)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.write("expected", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.write("unexpected", test)

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.write("failed", test)


main.main(module=None, testRunner=unittest.TextTestRunner(resultclass=Outcomes))
