"""The tests themselves: they end, whoever started them."""

import io
import os
import signal
import subprocess
import sys
import unittest

import run
from agent import BOUND


class Signals(unittest.TestCase):
    """Started by `test_a_caller_that_ignores_signals_changes_nothing`; by itself it only asks for the dispositions."""

    def test_dispositions_are_those_of_a_command_in_the_foreground(self):
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        code = "import signal; print([n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN])"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=BOUND)
        # Python itself ignores these two.
        self.assertEqual(done.stdout, "{}\n".format([int(signal.SIGPIPE), int(signal.SIGXFSZ)]))


class Runner(unittest.TestCase):
    def test_a_caller_that_ignores_signals_changes_nothing(self):
        name = "test_run.Signals.test_dispositions_are_those_of_a_command_in_the_foreground"
        script = "trap '' HUP INT QUIT TERM USR1 USR2 CHLD TSTP; exec \"$@\""
        command = ["sh", "-c", script, "sh", sys.executable, run.__file__, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BOUND)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_wait_without_a_bound_of_its_own_ends(self):
        class Result(run.BoundedResult):
            bound = 0.2

        class Waiting(unittest.TestCase):
            def runTest(self):
                reader, writer = os.pipe()
                try:
                    os.read(reader, 1)
                finally:
                    os.close(reader)
                    os.close(writer)

        previous = signal.getsignal(signal.SIGALRM)
        remaining, _ = signal.getitimer(signal.ITIMER_REAL)
        try:
            runner = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Result)
            result = runner.run(Waiting())
        finally:
            signal.signal(signal.SIGALRM, previous)
            signal.setitimer(signal.ITIMER_REAL, remaining)
        [(_, told)] = result.errors
        self.assertIn("still waiting after 0.2 s", told)
