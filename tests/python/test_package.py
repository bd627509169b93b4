"""The package `rankrun`: what ranks say of themselves, and `launch` through the real binary."""

import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path
from unittest import mock

from agent import BOUND, PACKAGE, ROOT, Agent, end_group, interpreters, mpi_python

sys.path.insert(0, str(PACKAGE))

import rankrun  # noqa: E402
from rankrun import guard, launcher  # noqa: E402

PYTHONS = {version: python for version, python in interpreters().items() if version >= (3, 9)}


def find_binary():
    """The newest binary that has been built, or else the one on the PATH."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [path for path in (target / "release/rankrun", target / "debug/rankrun") if path.exists()]
    if built:
        return str(max(built, key=lambda path: path.stat().st_mtime))
    return shutil.which("rankrun")


BINARY = os.environ.get("RANKRUN_TEST_BINARY") or find_binary()


class PackageTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="rr-python-")
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RANKRUN", "PMI"))}
        path = os.pathsep.join([os.path.dirname(BINARY or ""), os.environ["PATH"]])
        state = str(self.directory / "state")
        return {**env, "PATH": path, "PYTHONPATH": str(PACKAGE), "XDG_STATE_HOME": state, **more}

    def script(self, text, name="program.py"):
        path = self.directory / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def start(self, command, **options):
        options.setdefault("env", self.environment())
        process = subprocess.Popen(
            command,
            cwd=str(self.directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            **options,
        )
        self.addCleanup(end_group, process)
        return process

    def run_to_end(self, command, stdin="", **options):
        process = self.start(command, **options)
        out, err = process.communicate(stdin, BOUND)
        return process.returncode, out, err

    def check(self, text, python=sys.executable, **options):
        """Runs a script, which must succeed, and returns what it prints."""
        status, out, err = self.run_to_end([python, self.script(text)], **options)
        self.assertEqual(status, 0, err)
        return out


class Alone(PackageTest):
    """What needs no binary."""

    def test_a_process_of_no_job_is_the_only_rank_of_its_world(self):
        code = "import rankrun as r; print(r.rank(), r.world_size(), r.local_rank(), r.attempt())"
        self.assertEqual(self.run_to_end([sys.executable, "-c", code])[1], "0 1 0 0\n")
        env = self.environment(RANKRUN_RANK="5", RANKRUN_WORLD_SIZE="8", RANKRUN_LOCAL_RANK="1", RANKRUN_ATTEMPT="2")
        self.assertEqual(self.run_to_end([sys.executable, "-c", code], env=env)[1], "5 8 1 2\n")

    def test_asking_for_the_rank_imports_nothing_heavy(self):
        code = "import sys, rankrun; rankrun.rank(); print([m for m in ('multiprocessing', 'json', 'socket') if m in sys.modules])"
        self.assertEqual(self.run_to_end([sys.executable, "-S", "-c", code])[1], "[]\n")

    def test_all_names_are_there(self):
        for name in rankrun.__all__:
            self.assertTrue(getattr(rankrun, name).__doc__, name)
            self.assertIn(name, dir(rankrun))
        with self.assertRaises(AttributeError):
            _ = rankrun.lunch

    def test_errors_have_the_seeds_texts_and_can_be_pickled(self):
        worker = rankrun.WorkerError(msg="f failed with error code: 3", exitcode=3, worker_id=2)
        self.assertEqual(str(worker), "worker[2] failed with exitcode=3")
        main = rankrun.MainProcessError(signal_no=15)
        self.assertEqual(str(main), "SIGTERM received, exiting due to Terminated.")
        self.assertTrue(str(rankrun.MainProcessError(signal_no=signal.SIGRTMIN + 3)).startswith("signal "))
        job = rankrun.LaunchError("no", exitcode=124)
        for error in (worker, main, job):
            self.assertIsInstance(error, multiprocessing.ProcessError)
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy)), (type(error), str(error)))
        self.assertEqual((worker.exitcode, worker.worker_id, main.signal_no, job.exitcode), (3, 2, 15, 124))

    def test_set_start_method_refuses_what_is_none(self):
        # What multiprocessing raises, and what the launcher raises that this one replaces: it asserts.
        for kind in (ValueError, AssertionError, multiprocessing.ProcessError, rankrun.StartMethodError):
            with self.assertRaises(kind) as caught:
                rankrun.set_start_method("threads")
        text = "start method 'threads' is none of \"fork\", \"spawn\" and \"forkserver\""
        self.assertEqual(str(caught.exception), text)
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(copy), str(copy)), (rankrun.StartMethodError, text))

    def test_a_start_method_that_the_platform_lacks_is_named(self):
        with mock.patch.object(multiprocessing, "get_all_start_methods", return_value=["fork", "spawn"]):
            with self.assertRaisesRegex(rankrun.StartMethodError, '"forkserver" does not exist .* "fork" and "spawn"'):
                rankrun.set_start_method("forkserver")

    def test_a_second_choice_of_the_start_method_names_the_first(self):
        said = self.check("""
            import rankrun
            rankrun.set_start_method("spawn")
            try:
                rankrun.set_start_method("fork")
            except RuntimeError as error:
                print(error)
        """)
        self.assertIn('cannot choose the start method "fork": "spawn" has been chosen before', said)

    def test_the_version_is_that_of_the_crate(self):
        crates = (ROOT / "Cargo.toml").read_text()
        version = re.search(r'^version = "(.+)"$', crates, re.MULTILINE).group(1)
        show = [sys.executable, "-c", "import rankrun; print(rankrun.__version__)"]
        if BINARY is not None:
            self.assertEqual(self.run_to_end(show)[1], version + "\n")
        # Without a command, and with the metadata of another copy, nothing is made up.
        other = self.directory / "other"
        (other / "rankrun-9.9.dist-info").mkdir(parents=True)
        (other / "rankrun-9.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: rankrun\nVersion: 9.9\n")
        path = os.pathsep.join([str(PACKAGE), str(other)])
        env = self.environment(PATH="/nonexistent", PYTHONPATH=path)
        self.assertEqual(self.run_to_end(show, env=env)[1], "0+unknown\n")
        # Installed, the metadata lie beside the package.
        shutil.copytree(PACKAGE / "rankrun", other / "rankrun", ignore=shutil.ignore_patterns("__pycache__"))
        env = self.environment(PATH="/nonexistent", PYTHONPATH=str(other))
        self.assertEqual(self.run_to_end(show, env=env)[1], "9.9\n")

    def test_launch_without_a_binary_says_what_is_missing(self):
        env = self.environment(PATH="/nonexistent")
        status, _, err = self.run_to_end([sys.executable, "-m", "rankrun", "-n", "2", "true"], env=env)
        self.assertEqual(status, 1)
        self.assertIn('error: the command "rankrun" is neither beside this interpreter nor on the PATH', err)


class Ports(PackageTest):
    def test_a_free_port_is_kept_until_it_is_dropped(self):
        port = rankrun.free_port()
        number = int(port)
        with socket.socket() as stranger, self.assertRaises(OSError):
            stranger.bind(("", number))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", number))
            server.listen()
        del port
        with socket.socket() as stranger:
            stranger.bind(("", number))

    def test_ports_that_are_kept_differ_from_each_other(self):
        ports = [rankrun.free_port() for _ in range(200)]
        self.assertEqual(len(set(ports)), 200)

    def test_a_port_is_a_number(self):
        with rankrun.free_port() as port:
            self.assertEqual(str(port), str(int(port)))
            self.assertIs(type(pickle.loads(pickle.dumps(port))), int)


class Speaking(PackageTest):
    """`note` and `abort`, at the other end of which is a stand-in for the agent."""

    def setUp(self):
        super().setUp()
        self.agent = Agent()
        self.addCleanup(self.agent.close)

    def say(self, code, **more):
        # Without the hook, so that all messages are the package's.
        env = self.environment(RANKRUN_SOCKET=self.agent.path, RANKRUN_RANK="3", **more)
        status, out, err = self.run_to_end([sys.executable, self.script(code)], env=env)
        return status, out, err, self.agent.drain()

    def test_a_note_follows_a_greeting(self):
        status, _, err, messages = self.say(
            "import rankrun\nrankrun.note('half \\u00e9 \\udc80')\nrankrun.note('done')"
        )
        self.assertEqual(status, 0, err)
        self.assertEqual([m["type"] for m in messages], ["hello", "note", "note"])
        self.assertEqual((messages[0]["rank"], messages[0]["kind"]), (3, "python"))
        self.assertEqual([m["text"] for m in messages[1:]], ["half \u00e9 ?", "done"])

    def test_a_note_that_is_too_long_loses_its_middle(self):
        _, _, _, messages = self.say("import rankrun\nrankrun.note('a' + '\\u20ac' * 100000 + 'z')")
        text = messages[1]["text"]
        self.assertEqual((text[0], text[-1]), ("a", "z"))
        self.assertIn("characters cut by rankrun", text)

    def test_notes_wait_for_nobody(self):
        with socket.socket(socket.AF_UNIX) as deaf:
            path = str(self.directory / "deaf")
            deaf.bind(path)
            deaf.listen()
            code = """
                import rankrun, time
                start = time.monotonic()
                for i in range(10000):
                    rankrun.note("note %d" % i)
                print(time.monotonic() - start)
            """
            env = self.environment(RANKRUN_SOCKET=path)
            self.assertLess(float(self.check(code, env=env)), 5)

    def test_a_whole_line_comes_even_after_one_that_got_stuck(self):
        # The stand-in reads only after a while: what it then reads is lines, whatever was dropped.
        with socket.socket(socket.AF_UNIX) as slow:
            path = str(self.directory / "slow")
            slow.bind(path)
            slow.listen()
            code = """
                import rankrun, sys
                for i in range(3000):
                    rankrun.note("x" * 999)
                print("full", flush=True)
                sys.stdin.readline()
                rankrun.note("last")
            """
            process = self.start([sys.executable, self.script(code)], env=self.environment(RANKRUN_SOCKET=path))
            self.assertEqual(process.stdout.readline(), "full\n")
            peer, _ = slow.accept()
            with peer:
                peer.setblocking(False)
                data = b""
                try:
                    while chunk := peer.recv(1 << 20):
                        data += chunk
                except BlockingIOError:
                    pass
                peer.setblocking(True)
                process.communicate("\n", BOUND)
                while chunk := peer.recv(1 << 20):
                    data += chunk
        messages = [json.loads(line) for line in data.splitlines()]
        self.assertLess(len(messages), 3000)
        self.assertEqual({m.get("text") for m in messages}, {None, "x" * 999, "last"})
        self.assertEqual(messages[-1]["text"], "last")

    def test_a_forked_child_speaks_on_a_connection_of_its_own(self):
        code = """
            import os, rankrun
            rankrun.note("parent")
            pid = os.fork()
            if pid == 0:
                rankrun.note("child")
                os._exit(0)
            os.waitpid(pid, 0)
            rankrun.note("parent again")
        """
        status, _, err, messages = self.say(code)
        self.assertEqual(status, 0, err)
        # What is said on two connections may be read in another order than it was said.
        self.assertCountEqual([m["type"] for m in messages], ["hello", "note", "hello", "note", "note"])
        self.assertEqual(len({m["pid"] for m in messages if m["type"] == "hello"}), 2)
        self.assertCountEqual(
            [m["text"] for m in messages if m["type"] == "note"], ["parent", "child", "parent again"]
        )

    def test_a_descriptor_that_the_program_has_reused_is_not_written_to(self):
        code = """
            import os, rankrun
            rankrun.note("one")
            os.closerange(3, 100)
            files = [open("file%d" % i, "w+") for i in range(10)]
            rankrun.note("two")
            assert not any(os.fstat(f.fileno()).st_size for f in files)
        """
        status, _, err, messages = self.say(code)
        self.assertEqual(status, 0, err)
        self.assertEqual([m.get("text") for m in messages], [None, "one", None, "two"])

    def test_abort_tells_and_ends_at_once(self):
        code = """
            import atexit, rankrun, sys
            atexit.register(print, "never")
            sys.stdout.write("flushed")
            try:
                rankrun.abort({}, "no good")
            finally:
                print("never")
        """
        for given, exits in ((3, 3), (0, 1), (256, 1), (-1, 1), (255, 255)):
            self.agent.messages.clear()
            status, out, _, messages = self.say(code.format(given))
            self.assertEqual((status, out), (exits, "flushed"))
            self.assertEqual(
                [(m["type"], m.get("code"), m.get("message")) for m in messages][1:], [("abort", given, "no good")]
            )

    def test_abort_outside_a_job_says_it_on_stderr(self):
        status, _, err = self.run_to_end([sys.executable, "-c", "import rankrun; rankrun.abort(4, 'no good')"])
        self.assertEqual((status, err), (4, "rankrun: rank 0 aborted: no good\n"))


class Guard(unittest.TestCase):
    def test_the_guard_is_found_wherever_it_stands(self):
        for test in ('__name__ == "__main__"', "'__main__' == __name__", "__name__ == '__main__' and x"):
            source = "def f(): pass\nif {}:\n    def g(): pass\n    try:\n        class H: pass\n    finally: pass\n".format(test)
            found = guard.find_guards(source.encode())
            self.assertEqual((found.lines, found.inside, found.outside), ([(2, 6)], {"g", "H"}, {"f"}))
        nested = guard.find_guards(b"try:\n    if __name__ == '__main__':\n        def g(): pass\n    else:\n        def h(): pass\nexcept E: pass\n")
        self.assertEqual((nested.lines, nested.inside, nested.outside), ([(2, 3)], {"g"}, {"h"}))

    def test_other_conditions_are_no_guard(self):
        for test in ("x", "__name__ != '__main__'", "__name__ == '__main__' or x", "__name__ == 'main'"):
            found = guard.find_guards("if {}:\n    def g(): pass\n".format(test).encode())
            self.assertEqual((found.lines, found.outside), ([], {"g"}))


class Pickling(PackageTest):
    """What cannot be sent is refused before anything is started."""

    HEAD = """
        import os, pickle, sys
        sys.modules["cloudpickle"] = None
        import rankrun
    """

    def setUp(self):
        super().setUp()
        # A rankrun that leaves a trace.
        trace = self.directory / "bin" / "rankrun"
        trace.parent.mkdir()
        trace.write_text('#!/bin/sh\ntouch "{}"\n'.format(self.directory / "started"))
        trace.chmod(0o755)

    def refused(self, body, how=()):
        env = self.environment()
        env["PATH"] = str(self.directory / "bin") + os.pathsep + os.environ["PATH"]
        text = textwrap.dedent(self.HEAD) + textwrap.dedent(body)
        command = [sys.executable, *how, text] if how else [sys.executable, self.script(text)]
        status, _, err = self.run_to_end(command, env=env)
        self.assertEqual(status, 1)
        self.assertFalse((self.directory / "started").exists())
        return err.strip().splitlines()[-1]

    def test_a_lambda_is_refused(self):
        last = self.refused("if __name__ == '__main__':\n    rankrun.launch(lambda a: a, 1, 2)\n")
        self.assertIn("PicklingError: cannot send <lambda> and its argument to the ranks: ", last)
        self.assertIn('define it at the top level of a module, above the guard, or "pip install cloudpickle"', last)

    def test_an_argument_is_refused(self):
        last = self.refused("if __name__ == '__main__':\n    rankrun.launch(print, open(os.devnull), 2)\n")
        self.assertIn("cannot send print and its argument to the ranks: cannot pickle", last)

    def test_a_function_of_a_main_program_without_a_file_is_refused(self):
        last = self.refused("def f(a): pass\nrankrun.launch(f, 1, 2)\n", ["-c"])
        self.assertIn("f is defined in a main program that cannot be imported", last)

    def test_an_instance_of_a_class_of_such_a_program_is_refused(self):
        last = self.refused("class C: pass\nrankrun.launch(print, [C()], 2)\n", ["-c"])
        self.assertIn("C is defined in a main program that cannot be imported", last)

    def test_what_is_defined_below_the_guard_is_refused(self):
        for define, send, name in (
            ("def inner(a): pass", "inner, 1", "inner"),
            ("@functools.lru_cache()\n    def inner(a): pass", "inner, 1", "inner"),
            ("class C: pass", "print, [C()]", "C"),
            # The ranks would call the first one.
            ("def work(a): pass", "work, 1", "work"),
        ):
            last = self.refused(
                "import functools\ndef work(a): pass\n"
                "if __name__ == '__main__':\n    {}\n    rankrun.launch({}, 2)\n".format(define, send)
            )
            self.assertIn(name + ' is defined below the guard if __name__ == "__main__": (line ', last)
            self.assertIn("define it at the top level of a module, above the guard, or", last)

    def test_a_function_that_is_none_is_refused(self):
        last = self.refused("if __name__ == '__main__':\n    rankrun.launch('ok', 1, 2)\n")
        self.assertEqual(last, "TypeError: func is 'ok', and must be a function")

    def test_fewer_ranks_than_one_are_refused(self):
        for n in (0, -1):
            last = self.refused("if __name__ == '__main__':\n    rankrun.launch(print, 1, {})\n".format(n))
            self.assertEqual(last, "ValueError: nprocs is {}, and must be at least 1".format(n))

    def test_arguments_of_the_wrong_kind_are_named(self):
        for arguments, said in (
            ("nprocs='2'", "TypeError: nprocs is '2', and must be an integer"),
            ("nprocs=2.0", "TypeError: nprocs is 2.0, and must be an integer"),
            ("nprocs=2, options='--tag'", "TypeError: options is '--tag', and must be a list of strings, one for each word"),
            ("nprocs=2, env={'A': 1}", "TypeError: env has 'A': 1, and must have a string for each name"),
            ("nprocs=2, grace='5s'", "TypeError: grace is '5s', and must be a number of seconds"),
            ("nprocs=2, grace=-1", "ValueError: grace is -1, and must be a number of seconds"),
            ("nprocs=2, options=b''", "TypeError: options is b'', and must be a list of strings, one for each word"),
            ("nprocs=2, hosts=b''", "TypeError: hosts is b'', and must be a string or a list of strings"),
            ("nprocs=2, hosts=3", "TypeError: hosts is 3, and must be a string or a list of strings"),
            ("nprocs=2, master_port=80000", "ValueError: master_port is 80000, and must be from 1 to 65535"),
        ):
            last = self.refused("if __name__ == '__main__':\n    rankrun.launch(print, 1, {})\n".format(arguments))
            self.assertEqual(last, said)


@unittest.skipIf(BINARY is None, "the binary rankrun has not been built")
class Launch(PackageTest):
    def check_each(self, text):
        for python in PYTHONS.values():
            with self.subTest(python=python):
                self.check(text, python)

    def test_results_come_in_order_and_the_environment_stays(self):
        self.check_each("""
            import os, rankrun
            class Result:
                def __init__(self, rank): self.rank = rank
            def f(args):
                assert args == {"a": (1, 2)}
                assert os.environ["RANK"] == os.environ["LOCAL_RANK"] == str(rankrun.rank())
                assert os.environ["WORLD_SIZE"] == "4" == str(rankrun.world_size())
                assert os.environ["MASTER_ADDR"] == "localhost" and int(os.environ["MASTER_PORT"]) > 0
                assert os.environ["HELLO"] == "world=1"
                return Result(rankrun.rank())
            if __name__ == "__main__":
                before = dict(os.environ)
                results = rankrun.launch(f, {"a": (1, 2)}, 4, env={"HELLO": "world=1"})
                assert [r.rank for r in results] == [0, 1, 2, 3] and type(results[0]) is Result
                assert dict(os.environ) == before
                state = os.path.join(os.environ["XDG_STATE_HOME"], "rankrun")
                assert not os.path.exists(state) or not os.listdir(state)
        """)

    def test_a_function_decides_what_follows_a_failure(self):
        self.check("""
            import rankrun
            def f(_):
                if rankrun.attempt() < 2 and rankrun.rank() == 1:
                    raise KeyError(rankrun.attempt())
                return rankrun.attempt()
            seen = []
            def decide(report):
                seen.append((report["culprit"]["rank"], report["culprit"]["cause"], report["attempt"]))
                return "wait 10ms" if len(seen) < 2 else "restart"
            def stop(report):
                return "stop"
            if __name__ == "__main__":
                assert rankrun.launch(f, None, 2, on_failure=decide) == [2, 2]
                assert seen == [(1, "KeyError: 0", 0), (1, "KeyError: 1", 1)], seen
                try:
                    rankrun.launch(f, None, 2, on_failure=stop, options=["--restart", "9"])
                except rankrun.WorkerError as error:
                    assert error.worker_id == 1 and error.report["attempt"] == 0
                    assert error.report["given_up"] == "gives up: --on-failure said stop", error.report["given_up"]
                else:
                    raise AssertionError("it was restarted")
                # One that fails itself is told of, and the options decide.
                def broken(report):
                    raise OSError("no answer")
                options = ["--restart", "2", "--backoff", "0", "--no-breaker"]
                import io, sys
                sys.stderr = said = io.StringIO()
                try:
                    assert rankrun.launch(f, None, 2, on_failure=broken, options=options) == [2, 2]
                finally:
                    sys.stderr = sys.__stderr__
                line = "rankrun: on_failure: broken raised OSError: the other options decide\\n"
                assert said.getvalue().count(line) == 2, said.getvalue()
        """)

    def test_what_cannot_decide_is_refused_before_anything_is_started(self):
        self.check("""
            import rankrun
            def f(_):
                raise KeyError("it runs")
            def refused(error, on_failure, options):
                try:
                    rankrun.launch(f, None, 1, on_failure=on_failure, options=options)
                except error as refusal:
                    return str(refusal)
                raise AssertionError("it was accepted")
            if __name__ == "__main__":
                assert "on_failure is 'x', and must be a function" in refused(TypeError, "x", [])
                for options in (["--on-failure", "echo stop"], ["--on-failure=echo stop"]):
                    assert "both decide" in refused(ValueError, lambda report: "stop", options)
        """)

    def test_an_answer_that_is_no_text_is_told_of_and_the_options_decide(self):
        self.check("""
            import io, rankrun, sys
            def f(_):
                if rankrun.attempt() < 1:
                    raise KeyError(rankrun.attempt())
                return rankrun.attempt()
            if __name__ == "__main__":
                class Text(str):
                    pass
                for answer, is_wrong in [(42, True), (b"stop", True), (["stop"], True), (True, True), (0, True), (object, True),
                                         ("", False), (Text("wait 1ms"), False), ("\\ud800", True)]:
                    sys.stderr = said = io.StringIO()
                    try:
                        result = rankrun.launch(f, None, 2, on_failure=lambda report: answer, options=["--restart", "1"])
                    finally:
                        sys.stderr = sys.__stderr__
                    assert result == [1, 1], (answer, result)
                    told = "rankrun: on_failure: <lambda> returned " in said.getvalue()
                    assert told == is_wrong, (answer, said.getvalue())
                    assert said.getvalue().count(": the other options decide\\n") == is_wrong, said.getvalue()
        """)

    def test_a_function_decides_below_a_temporary_directory_of_any_length(self):
        self.check("""
            import os, rankrun, tempfile
            def f(_):
                if rankrun.attempt() < 2:
                    raise KeyError(rankrun.attempt())
                return rankrun.attempt()
            if __name__ == "__main__":
                with tempfile.TemporaryDirectory() as outer:
                    long = os.path.join(outer, "x" * 120, "y" * 120)
                    os.makedirs(long)
                    tempfile.tempdir, os.environ["TMPDIR"] = long, long
                    assert rankrun.launch(f, None, 2, on_failure=lambda report: "restart") == [2, 2]
                    assert os.listdir(long) == [], os.listdir(long)
                    tempfile.tempdir = None
        """)

    def test_address_and_port_are_the_callers(self):
        self.check("""
            import os, rankrun, socket
            def f(_):
                if rankrun.rank() == 0:
                    with socket.socket() as server:
                        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        server.bind(("", int(os.environ["MASTER_PORT"])))
                        server.listen()
                return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            if __name__ == "__main__":
                port = rankrun.free_port()
                assert rankrun.launch(f, None, 2, "127.0.0.1", port) == [("127.0.0.1", str(port))] * 2
                assert rankrun.launch(f, None, nprocs=1, master_addr="x", master_port=int(port)) == [("x", str(port))]
        """)

    def test_an_exception_comes_with_its_remote_traceback(self):
        self.check_each("""
            import rankrun, sys, time, traceback
            def broken(args):
                if rankrun.rank() == 2:
                    raise ValueError("failure!")
                time.sleep(60)
            if __name__ == "__main__":
                start = time.monotonic()
                try:
                    rankrun.launch(broken, None, 4)
                except rankrun.WorkerError as error:
                    assert str(error) == "worker[2] failed with exitcode=1", error
                    assert (error.exitcode, error.worker_id) == (1, 2)
                    assert error.args == ("broken failed with error code: 1",)
                    assert type(error.exception) is ValueError and str(error.exception) == "failure!"
                    text = str(error.__cause__)
                    assert 'raise ValueError("failure!")' in text and "in broken" in text and "worker.py" not in text, text
                    assert error.report["culprit"]["rank"] == 2
                    assert "ValueError: failure!" in "".join(traceback.format_exception(type(error), error, None))
                else:
                    raise AssertionError("no error")
                assert time.monotonic() - start < 20
        """)

    def test_other_ends_of_a_rank(self):
        self.check("""
            import os, rankrun, signal, sys, time
            class Odd(Exception):
                def __init__(self, a, b): super().__init__(a)
            def f(how):
                if rankrun.rank() == 1:
                    if how == "exit": sys.exit(3)
                    if how == "text": sys.exit("failure!")
                    if how == "segv": os.kill(os.getpid(), signal.SIGSEGV)
                    if how == "139": os._exit(139)
                    if how == "odd": raise Odd(1, 2)
                    if how == "result": return sys._getframe()
                    if how == "abort": rankrun.abort(7, "no good")
                time.sleep(60)
            if __name__ == "__main__":
                for how, exitcode in [("exit", 3), ("text", 1), ("segv", -11), ("139", 139), ("odd", 1), ("result", 1), ("abort", 7)]:
                    try:
                        rankrun.launch(f, how, 3)
                    except rankrun.WorkerError as error:
                        assert (error.worker_id, error.exitcode) == (1, exitcode), (how, error)
                        if how == "odd":
                            assert error.exception is None and "Odd: 1" in str(error.__cause__)
                        elif how == "result":
                            assert "pickle" in str(error.exception)
                        else:
                            assert error.__cause__ is None
                    else:
                        raise AssertionError(how)
        """)

    def test_a_rank_that_exits_with_success_has_no_result(self):
        self.check("""
            import rankrun, sys
            def f(_):
                if rankrun.rank() == 0: sys.exit(0)
                return 5
            if __name__ == "__main__":
                assert rankrun.launch(f, None, 2) == [None, 5]
        """)

    def test_a_job_that_cannot_be_started_is_a_launch_error(self):
        self.check("""
            import rankrun
            if __name__ == "__main__":
                for options, code in ((["--no-such-option"], 2), (["--timeout", "200ms"], 124)):
                    try:
                        import time
                        rankrun.launch(time.sleep, 60, 2, options=options)
                    except rankrun.LaunchError as error:
                        assert error.exitcode == code, (error, error.exitcode)
                    else:
                        raise AssertionError(options)
        """)

    def test_functions_without_a_module_go_by_cloudpickle(self):
        try:
            import cloudpickle  # noqa: F401
        except ImportError:
            self.skipTest("cloudpickle is not installed")
        code = textwrap.dedent("""
            import rankrun
            offset = 10
            class Result:
                def __init__(self, x): self.x = x
            def f(a): return Result(a + offset + rankrun.rank())
            results = rankrun.launch(f, 1, 2)
            assert [r.x for r in results] == [11, 12] and isinstance(results[0], Result), results
            assert rankrun.launch(lambda a: a * rankrun.rank(), 3, 3) == [0, 3, 6]
        """)
        below = textwrap.dedent("""
            import rankrun
            if __name__ == "__main__":
                def inner(a): return a + rankrun.rank()
                assert rankrun.launch(inner, 1, 2) == [1, 2]
        """)
        scripts = [[sys.executable, self.script(below)]]
        for command, stdin in (([sys.executable, "-c", code], ""), ([sys.executable, "-"], code), *((s, "") for s in scripts)):
            status, _, err = self.run_to_end(command, stdin)
            self.assertEqual(status, 0, err)

    def test_a_name_that_only_the_first_process_has_comes_with_a_hint(self):
        status, _, err = self.run_to_end(
            [
                sys.executable,
                self.script("import rankrun\nif __name__ == '__main__':\n    exec('def f(a): pass')\n    rankrun.launch(f, 1, 1)\n"),
            ]
        )
        self.assertEqual(status, 1)
        self.assertIn('a rank imports the main module, and does not run what is below if __name__ == "__main__":', err)

    def test_a_module_run_by_name_can_launch(self):
        self.script("""
            import rankrun
            def f(a): return a + rankrun.rank()
            if __name__ == "__main__":
                assert rankrun.launch(f, 1, 2) == [1, 2]
        """)
        status, _, err = self.run_to_end([sys.executable, "-m", "program"])
        self.assertEqual(status, 0, err)

    def test_a_script_without_its_guard_ends_with_an_explanation(self):
        status, _, err = self.run_to_end(
            [sys.executable, self.script("import rankrun\ndef f(a): pass\nrankrun.launch(f, 1, 2)\n")]
        )
        self.assertEqual(status, 1)
        said = "RuntimeError: a rank that imports this module would start the ranks again: call launch() below if __name__ == '__main__':"
        headline = next(line for line in err.splitlines() if line.startswith("rankrun: "))
        self.assertIn(said, headline)
        self.assertIn("program.py:3 in <module>", err)
        lines = err.splitlines()
        # Of each rank that came so far, and of the cause.
        self.assertIn(lines.count(said), (2, 3), err)
        # A rank that is ended before it has printed its message is quoted with the end of its traceback.
        self.assertLess(len(lines), 40, err)

    def test_the_traceback_of_a_rank_begins_in_the_program(self):
        status, _, err = self.run_to_end(
            [sys.executable, self.script("import rankrun\ndef f(a): raise ValueError('bad')\nif __name__ == '__main__':\n    rankrun.launch(f, 1, 1)\n")]
        )
        self.assertEqual(status, 1)
        self.assertNotIn("worker.py", err)
        self.assertNotIn("in _failure", err)
        self.assertEqual(err.count("ValueError: bad"), 3, err)

    def test_the_start_method_may_be_chosen_after_a_launch_and_in_a_rank(self):
        self.check("""
            import multiprocessing, rankrun
            def f(_):
                rankrun.set_start_method("spawn")
                return multiprocessing.get_start_method()
            if __name__ == "__main__":
                assert rankrun.launch(f, None, 2) == ["spawn", "spawn"]
                rankrun.set_start_method("forkserver")
                assert multiprocessing.get_start_method() == "forkserver"
        """)

    def test_launch_can_be_nested_and_repeated(self):
        self.check("""
            import rankrun
            def inner(a): return a * 10 + rankrun.rank()
            def outer(a): return rankrun.launch(inner, rankrun.rank(), 2)
            if __name__ == "__main__":
                for _ in range(2):
                    assert rankrun.launch(outer, None, 2) == [[0, 1], [10, 11]]
        """)

    def test_launch_works_outside_the_main_thread(self):
        self.check("""
            import rankrun, signal, threading
            def f(a): return rankrun.rank()
            if __name__ == "__main__":
                got = []
                threads = [threading.Thread(target=lambda: got.append(rankrun.launch(f, None, 2))) for _ in range(3)]
                for t in threads: t.start()
                for t in threads: t.join()
                assert got == [[0, 1]] * 3, got
                assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        """)

    def test_the_start_method_reaches_the_ranks(self):
        self.check("""
            import multiprocessing, os, rankrun
            def f(a):
                with multiprocessing.Pool(1) as pool:
                    return multiprocessing.get_start_method(), pool.apply(os.getppid) == os.getpid()
            if __name__ == "__main__":
                rankrun.set_start_method("forkserver")
                assert rankrun.launch(f, None, 2) == [("forkserver", False)] * 2
        """)

    def test_mpi_ranks_find_each_other(self):
        python = mpi_python("mpich")
        if python is None:
            self.skipTest('the Python environment "mpich" is not there; cargo xtask env makes it')
        text = """
            import rankrun
            def f(a):
                from mpi4py import MPI
                total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + a)
                if a == 100 and rankrun.rank() == 1: raise ValueError("failure!")
                MPI.COMM_WORLD.Barrier()
                return total
            if __name__ == "__main__":
                assert rankrun.launch(f, 1, 4) == [10] * 4
                try:
                    rankrun.launch(f, 100, 4)
                except rankrun.WorkerError as error:
                    assert (error.worker_id, error.exitcode, str(error.exception)) == (1, 1, "failure!")
                else:
                    raise AssertionError("no error")
        """
        self.check(text, python)

    def test_the_module_is_the_command(self):
        status, out, _ = self.run_to_end([sys.executable, "-m", "rankrun", "--version"])
        self.assertEqual((status, out), (0, subprocess.check_output([BINARY, "--version"], text=True)))
        status, out, _ = self.run_to_end([sys.executable, "-m", "rankrun", "-n", "2", "sh", "-c", "echo $RANK; exit 3"])
        self.assertEqual(status, 3)


@unittest.skipIf(BINARY is None, "the binary rankrun has not been built")
class Signals(PackageTest):
    PROGRAM = """
        import os, rankrun, signal, subprocess, sys, time
        def f(directory):
            # A daemon that outlives the rank unless somebody looks for it.
            daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
            with open(os.path.join(directory, "pids%d" % rankrun.rank()), "w") as file:
                file.write("%d %d\\n" % (os.getpid(), daemon.pid))
            time.sleep(600)
        def own(*_): sys.exit(99)
        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, own)
            before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
            for _ in range(int(sys.argv[2])):
                try:
                    rankrun.launch(f, sys.argv[1], 3, grace=2)
                except rankrun.MainProcessError as error:
                    print(error.signal_no, error, flush=True)
                assert {n: signal.getsignal(n) for n in before} == before
    """

    def pids(self, directory):
        """Waits until all ranks of a job have said who they are, and takes note."""
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            files = list(directory.glob("pids*"))
            texts = [file.read_text() for file in files]
            if len(texts) == 3 and all(text.endswith("\n") for text in texts):
                for file in files:
                    file.unlink()
                return [int(word) for text in texts for word in text.split()]
            time.sleep(0.01)
        self.fail("the ranks have not started")

    def assert_gone(self, pids):
        for pid in pids:
            try:
                state = Path("/proc/{}/stat".format(pid)).read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            self.assertIn(state, "ZX", "{} is alive".format(pid))

    def test_signals_end_the_job_again_and_again(self):
        ranks = self.directory / "ranks"
        ranks.mkdir()
        process = self.start([sys.executable, self.script(self.PROGRAM), str(ranks), "3"])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            pids = self.pids(ranks)
            process.send_signal(number)
            said = process.stdout.readline()
            self.assert_gone(pids)
            self.assertTrue(said.startswith("{} {} received, exiting due to ".format(int(number), number.name)), said)
        _, err = process.communicate("", BOUND)
        self.assertEqual(process.returncode, 0, err)

    def test_an_interrupt_typed_at_a_terminal_reaches_both_and_ends_the_job_once(self):
        ranks = self.directory / "ranks"
        ranks.mkdir()
        process = self.start([sys.executable, self.script(self.PROGRAM), str(ranks), "1"])
        pids = self.pids(ranks)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate("", BOUND)
        self.assert_gone(pids)
        self.assertEqual((process.returncode, out.split()[:2]), (0, ["2", "SIGINT"]), err)

    def test_a_caller_that_is_killed_takes_the_job_with_it(self):
        ranks = self.directory / "ranks"
        ranks.mkdir()
        process = self.start([sys.executable, self.script(self.PROGRAM), str(ranks), "1"])
        pids = self.pids(ranks)
        process.kill()
        # rankrun, which has the caller's stderr too, is gone when that ends.
        _, err = process.communicate("", BOUND)
        self.assert_gone(pids)
        self.assertIn("rankrun: ended by SIGTERM", err)

    def test_what_is_ignored_stays_ignored(self):
        self.check("""
            import os, rankrun, signal
            def f(parent):
                os.kill(parent, signal.SIGINT)
                return signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            if __name__ == "__main__":
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                assert rankrun.launch(f, os.getpid(), 2) == [True, True]
                assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        """)


class Preparation(unittest.TestCase):
    def test_flags_of_this_interpreter_reach_the_ranks(self):
        command = launcher._interpreter()
        self.assertEqual(command[0], sys.executable)


if __name__ == "__main__":
    unittest.main()
