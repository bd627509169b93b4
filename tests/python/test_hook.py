"""What the interpreter hook tells, in every interpreter of this machine."""

import functools
import glob
import os
import pty
import re
import select
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from agent import BOUND, HOOK, Agent, end_group, interpreters, mpi_python, told
from hook_cases import CASES, EXIT_3, EXPECTED_VALUE_ERROR, STUCK

PYTHONS = interpreters()
OLDEST = (3, 6)


def in_each_python(since=OLDEST, before=(4, 0)):
    """Runs a test once in every interpreter of these versions, and hands it the program."""

    def decorate(test):
        @functools.wraps(test)
        def run(self):
            for version, python in PYTHONS.items():
                if since <= version < before:
                    with self.subTest(python=python):
                        self.agent.messages.clear()
                        test(self, python)

        return run

    return decorate


class HookTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.agent = Agent()
        self.addCleanup(self.agent.close)
        scratch = tempfile.TemporaryDirectory(prefix="rr-python-")
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)
        (self.directory / "broken.py").write_text("1/0\n")

    def script(self, text, name="program.py"):
        path = self.directory / name
        path.write_text(text + "\n")
        return str(path)

    def start(self, command, **options):
        env = options.pop("env", None) or self.agent.environment()
        process = subprocess.Popen(
            command,
            cwd=str(self.directory),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **options,
        )
        self.addCleanup(end_group, process)
        return process

    def run_to_end(self, command, stdin="", **options):
        process = self.start(command, **options)
        out, err = process.communicate(stdin.encode(), BOUND)
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def uncaught(self, messages):
        """The whole of it: a first message may have the type of the exception only, and the same time."""
        all_of_it = [message for message in messages if message["type"] == "uncaught"]
        self.assertEqual([m["time"] for m in all_of_it], [all_of_it[-1]["time"]] * len(all_of_it))
        self.assertEqual([m for m in all_of_it[:-1] if "message" in m], [])
        return all_of_it[-1]


class Matrix(HookTest):
    """One test for each case, over all interpreters that it concerns."""

    def check(self, case, version, python):
        command = [python] + case.options
        stdin = case.stdin
        if case.how == "script":
            command.append(self.script(case.program))
        elif case.how == "command":
            command += ["-c", case.program]
        elif case.how == "module":
            self.script(case.program)
            command += ["-m", "program"]
        elif case.how == "stdin":
            command.append("-")
            stdin = case.program + "\n"
        self.agent.messages.clear()
        status, _, err = self.run_to_end(command, stdin)
        got = told(self.agent.drain())
        if case.status is not None:
            self.assertEqual(status, case.status, err)
        if case.told is not None:
            self.assertEqual(got, case.told, err)
        self.assertNotIn("sitecustomize", err)


def add_cases():
    for name, case in CASES.items():

        def test(self, case=case):
            for version, python in PYTHONS.items():
                if max(case.since, OLDEST) <= version < case.before:
                    with self.subTest(python=python):
                        self.check(case, version, python)

        setattr(Matrix, "test_" + name, test)


add_cases()


class Stuck(HookTest):
    """An exception that Python's own exit keeps from becoming an exit is told while it is stuck."""


def add_stuck():
    for name, program in STUCK.items():

        def test(self, program=program):
            for version, python in PYTHONS.items():
                if version >= OLDEST:
                    with self.subTest(python=python):
                        self.agent.messages.clear()
                        process = self.start([python, self.script(program)])
                        self.agent.wait_for_type("uncaught")
                        self.assertNotIn("exiting", [m["type"] for m in self.agent.messages])
                        self.assertIsNone(process.poll())
                        process.communicate(b"", BOUND)
                        got = told(self.agent.drain())
                        self.assertEqual([kind for kind, *_ in got], ["uncaught", "exiting"])
                        self.assertEqual(got[-1], ("exiting", process.returncode))

        setattr(Stuck, "test_" + name, test)


add_stuck()


class Details(HookTest):
    @in_each_python()
    def test_messages_carry_the_documented_fields(self, python):
        path = self.script("def func():\n    raise ValueError('failure!')\nfunc()")
        process = self.start([python, path])
        process.communicate(b"", BOUND)
        messages = self.agent.drain()
        hello = messages[0]
        self.assertEqual((hello["v"], hello["type"], hello["pid"]), (1, "hello", process.pid))
        self.assertEqual((hello["rank"], hello["kind"]), (3, "python"))
        self.assertRegex(hello["version"], r"^3\.\d+\.\d+$")
        self.assertEqual([m["type"] for m in messages], ["hello", "hello", "uncaught", "hello", "exiting"])
        self.assertEqual(messages[1]["argv0"], path)
        uncaught = messages[2]
        self.assertEqual(Path(uncaught["file"]).name, "program.py")
        self.assertEqual((uncaught["line"], uncaught["function"], uncaught["thread"]), (2, "func", "MainThread"))
        self.assertTrue(uncaught["traceback"].startswith("Traceback (most recent call last):\n"))
        self.assertTrue(uncaught["traceback"].endswith("ValueError: failure!\n"))
        self.assertLess(uncaught["time"], messages[4]["time"])

    @in_each_python()
    def test_sys_exit_names_its_line(self, python):
        path = self.script("import sys\ndef func():\n    sys.exit(3)\nfunc()")
        self.run_to_end([python, path])
        uncaught = self.uncaught(self.agent.drain())
        self.assertEqual((uncaught["line"], uncaught["function"], uncaught["code"]), (3, "func", 3))
        self.assertNotIn("sitecustomize", uncaught["traceback"])

    @in_each_python()
    def test_syntax_error_names_its_line(self, python):
        self.run_to_end([python, self.script("pass\ndef broken(:\n")])
        uncaught = self.uncaught(self.agent.drain())
        self.assertEqual((uncaught["exception"], uncaught["line"]), ("SyntaxError", 2))

    @in_each_python()
    def test_causes_are_in_the_traceback(self, python):
        program = "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('failure!') from e"
        self.run_to_end([python, self.script(program)])
        text = self.uncaught(self.agent.drain())["traceback"]
        self.assertIn("ZeroDivisionError: division by zero\n\nThe above exception was the direct cause", text)

    @in_each_python((3, 11))
    def test_notes_and_groups_are_in_the_traceback(self, python):
        program = (
            "e = ValueError('failure!'); e.add_note('first note')\n"
            "raise ExceptionGroup('several', [e, KeyError('other')])"
        )
        self.run_to_end([python, self.script(program)])
        text = self.uncaught(self.agent.drain())["traceback"]
        self.assertIn("first note", text)
        self.assertIn("KeyError: 'other'", text)

    @in_each_python()
    def test_a_huge_message_and_traceback_fit_in_a_line(self, python):
        program = (
            "import sys\nsys.setrecursionlimit(4000)\n"
            "def even(n): return odd(n - 1) if n else explode()\n"
            "def odd(n): return even(n - 1) if n else explode()\n"
            "def explode(): raise ValueError('start' + '\\n\\x01' * 1000000 + 'end')\neven(1000)\n"
        )
        self.run_to_end([python, self.script(program)])
        uncaught = self.uncaught(self.agent.drain())
        self.assertTrue(uncaught["message"].startswith("start"))
        self.assertTrue(uncaught["message"].endswith("end"))
        self.assertIn("characters cut by rankrun", uncaught["message"])
        self.assertIn("outer frames left out by rankrun", uncaught["traceback"])
        self.assertIn("characters cut by rankrun", uncaught["traceback"])
        self.assertEqual(uncaught["function"], "explode")

    @in_each_python()
    def test_what_python_prints_does_not_change(self, python):
        programs = {
            "exception": "def f(): raise ValueError('failure!')\nf()",
            "exit": "import sys\nsys.exit('failure!')",
            "both": "import sys\ntry:\n    1/0\nfinally:\n    sys.exit(4)",
        }
        for name, program in programs.items():
            path = self.script(program, name + ".py")
            bare = {k: v for k, v in self.agent.environment().items() if k != "PYTHONPATH"}
            self.assertEqual(self.run_to_end([python, path]), self.run_to_end([python, path], env=bare))

    @in_each_python()
    def test_a_stopped_agent_delays_nothing_for_long(self, python):
        # It accepts nothing: the connections wait in its backlog, and beyond that they are refused for the time being.
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(deaf.close)
        path = str(self.directory / os.path.basename(self.agent.path)) + python.replace("/", "-")[-40:]
        deaf.bind(path)
        deaf.listen(0)
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(waiting.close)
        waiting.connect(path)
        program = (
            "import time\nstart = time.monotonic()\n"
            "import atexit; atexit.register(lambda: print(time.monotonic() - start))\nraise ValueError('failure!')"
        )
        env = dict(self.agent.environment(), RANKRUN_SOCKET=path)
        status, out, err = self.run_to_end([python, self.script(program)], env=env)
        self.assertEqual(status, 1)
        self.assertEqual(err.count("Traceback"), 1)
        self.assertLess(float(out), 2)

    @in_each_python()
    def test_a_missing_socket_is_no_trouble(self, python):
        for path in ("/nonexistent/socket", str(self.directory), "x" * 500, "\udc80"):
            env = dict(self.agent.environment(), RANKRUN_SOCKET=path)
            status, _, err = self.run_to_end([python, self.script("raise ValueError('failure!')")], env=env)
            self.assertEqual((status, err.count("Traceback")), (1, 1), err)

    @in_each_python()
    def test_an_odd_rank_is_no_trouble(self, python):
        env = dict(self.agent.environment(), RANKRUN_RANK="none")
        status, _, err = self.run_to_end([python, self.script("raise ValueError('failure!')")], env=env)
        self.assertEqual((status, err.count("Traceback")), (1, 1), err)

    @in_each_python()
    def test_nothing_is_told_without_a_socket(self, python):
        env = self.agent.environment()
        del env["RANKRUN_SOCKET"]
        program = "import sys\nassert not hasattr(sys, 'last_value')\nassert type(SystemExit.code).__name__ == 'member_descriptor'"
        self.assertEqual(self.run_to_end([python, self.script(program)], env=env)[0], 0)
        self.assertEqual(self.agent.drain(), [])

    def test_interpreters_that_are_too_old_run_as_ever(self):
        for version, python in PYTHONS.items():
            if version < OLDEST:
                status, out, err = self.run_to_end([python, "-c", "import sys; sys.exit(3)"])
                self.assertEqual((status, out, err), (3, "", ""))
        self.assertEqual(self.agent.drain(), [])

    def test_the_file_is_ascii_and_parses_in_every_interpreter(self):
        HOOK.read_bytes().decode("ascii")
        for python in PYTHONS.values():
            code = "import sys\nsource = open(sys.argv[1]).read()\ncompile(source, 'hook', 'exec')"
            with self.subTest(python=python):
                self.assertEqual(self.run_to_end([python, "-c", code, str(HOOK)])[0], 0)

    def test_a_command_that_fails_below_another_program_is_told_with_its_own_pid(self):
        python = list(PYTHONS.values())[-1]
        line = "{0} {1} || {0} -c pass".format(python, self.script("raise ValueError('failure!')"))
        status, _, _ = self.run_to_end(["sh", "-c", line])
        messages = self.agent.drain()
        self.assertEqual(status, 0)
        self.assertEqual(told(messages), EXPECTED_VALUE_ERROR)
        self.assertEqual(len({m["pid"] for m in messages if m["type"] == "hello"}), 2)

    def told_of_a_prompt(self, python):
        master, slave = pty.openpty()
        env = dict(self.agent.environment(), TERM="dumb")
        process = subprocess.Popen(
            [python, "-q"], stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        self.addCleanup(end_group, process)
        os.close(slave)
        # The prompt has read the whole line only when it answers; what it answers is not in what is typed.
        os.write(master, b"1/0\nprint('don' + 'e')\n")
        seen = b""
        while b"done" not in seen:
            self.assertTrue(select.select([master], [], [], BOUND)[0], seen)
            seen += os.read(master, 4096)
        os.write(master, b"import sys; sys.exit(3)\n")
        self.assertEqual(process.wait(BOUND), 3)
        os.close(master)
        return told(self.agent.drain())

    @in_each_python(before=(3, 13))
    def test_exceptions_at_a_prompt_on_a_terminal_are_no_end(self, python):
        self.assertEqual(self.told_of_a_prompt(python), EXIT_3)

    @in_each_python(since=(3, 13))
    def test_a_prompt_that_is_a_python_program_is_left_alone(self, python):
        self.assertEqual(self.told_of_a_prompt(python), [])

    @in_each_python()
    def test_only_exec_begins_a_new_speaker(self, python):
        program = (
            "import multiprocessing as mp, os, subprocess, sys\n"
            "if __name__ == '__main__':\n"
            "    for method in ('fork', 'spawn', 'forkserver'):\n"
            "        p = mp.get_context(method).Process(target=os.getpid); p.start(); p.join()\n"
            "    subprocess.check_call([sys.executable, '-c', 'pass'])"
        )
        status, _, err = self.run_to_end([python, self.script(program)])
        self.assertEqual(status, 0, err)
        self.assertEqual(len([m for m in self.agent.drain() if m["type"] == "hello"]), 2)


class Site(HookTest):
    """The hook leaves no trace of itself where programs look."""

    def env_with_site(self, text):
        site = self.directory / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(text)
        env = self.agent.environment()
        env["PYTHONPATH"] += os.pathsep + str(site)
        return env, str(site)

    def test_the_sites_own_sitecustomize_is_the_one_that_programs_see(self):
        env, site = self.env_with_site("import sys\nsys.stdout.write('site ')\nname = 'mine'\n")
        code = (
            "import sys, sitecustomize\n"
            "sys.stdout.write('%s %s' % (sitecustomize.name, sitecustomize.__file__.startswith(sys.argv[1])))"
        )
        for version, python in PYTHONS.items():
            with self.subTest(python=python):
                self.agent.messages.clear()
                status, out, err = self.run_to_end([python, "-c", code, site], env=env)
                self.assertEqual((status, out, err), (0, "site mine True", ""))
                self.assertEqual(len(self.agent.drain()), 1 if version >= OLDEST else 0)

    def test_a_site_without_one_sees_none(self):
        code = (
            "import sys\n"
            "assert not any('hook' in entry for entry in sys.path), sys.path\n"
            "if 'sitecustomize' in sys.modules: assert 'hook' not in sys.modules['sitecustomize'].__file__"
        )
        for python in PYTHONS.values():
            with self.subTest(python=python):
                self.assertEqual(self.run_to_end([python, "-c", code]), (0, "", ""))

    def test_a_broken_one_is_reported_as_ever(self):
        env, site = self.env_with_site("1/0\n")
        bare = dict(env, PYTHONPATH=site)
        for python in PYTHONS.values():
            with self.subTest(python=python):
                with_hook, without = (self.run_to_end([python, "-c", "pass"], env=e) for e in (env, bare))
                self.assertEqual(with_hook, without)

    def test_an_excepthook_of_the_site_keeps_working(self):
        env, _ = self.env_with_site("import sys\nsys.excepthook = lambda *a: sys.stdout.write('theirs')\n")
        for version, python in PYTHONS.items():
            if version >= OLDEST:
                with self.subTest(python=python):
                    self.agent.messages.clear()
                    status, out, _ = self.run_to_end([python, "-c", "raise ValueError('failure!')"], env=env)
                    self.assertEqual((status, out), (1, "theirs"))
                    self.assertEqual(told(self.agent.drain()), EXPECTED_VALUE_ERROR)


class Mpi4py(HookTest):
    """The problem itself, under an MPI that finalizes when the interpreter does."""

    SEED = (
        "def func():\n    import mpi4py.MPI\n    mpi4py.MPI.COMM_WORLD.rank\n    raise ValueError('failure!')\n\n"
        "if __name__ == '__main__':\n    func()\n"
    )

    def start(self, command, **options):
        process = super().start(command, **options)
        # An MPI program that aborts leaves its shared memory, and here is no launcher to remove it. Its name has the process of a world of one: others are
        # those of jobs that run beside this test.
        own = "/dev/shm/mpich_shm_{:x}_*".format(process.pid)
        self.addCleanup(lambda: [os.unlink(name) for name in glob.glob(own)])
        return process

    def python(self):
        python = mpi_python("mpich")
        if python is None:
            self.skipTest('the Python environment "mpich" is not there; cargo xtask env makes it')
        return python

    def test_exiting_is_told_before_mpi_finalizes(self):
        path = self.script(self.SEED)
        status, _, err = self.run_to_end([self.python(), path])
        messages = self.agent.drain()
        self.assertEqual((status, told(messages)), (1, EXPECTED_VALUE_ERROR), err)
        self.assertEqual((self.uncaught(messages)["line"], self.uncaught(messages)["function"]), (4, "func"))

    def test_python_m_mpi4py_still_aborts(self):
        status, _, err = self.run_to_end([self.python(), "-m", "mpi4py", self.script(self.SEED)])
        self.assertNotEqual(status, 0)
        self.assertRegex(err, re.compile("abort", re.IGNORECASE))
        self.assertEqual(told(self.agent.drain())[:1], EXPECTED_VALUE_ERROR[:1])

    def test_the_excepthook_that_calls_abort_still_wins(self):
        snippet = (
            "import sys\ndef hook(exctype, value, traceback):\n"
            "    import mpi4py.MPI\n    sys.stderr.write('calling abort\\n')\n    mpi4py.MPI.COMM_WORLD.Abort(1)\n"
            "sys.excepthook = hook\n"
        )
        status, _, err = self.run_to_end([self.python(), self.script(snippet + self.SEED)])
        self.assertNotEqual(status, 0)
        self.assertIn("calling abort", err)
        self.assertEqual(told(self.agent.drain()), EXPECTED_VALUE_ERROR[:1])


if __name__ == "__main__":
    unittest.main()
