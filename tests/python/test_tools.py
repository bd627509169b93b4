"""Tools that look at a program, and programs that look at their interpreter, see the same with the hook and without."""

import json
import re
import shutil
import unittest

from agent import mpi_python, told
from hook_cases import EXIT_3
from test_hook import PYTHONS, HookTest, in_each_python

FAILING = "def func():\n    raise ValueError('failure!')\n\nfunc()"
EXITING = "import sys\ndef func():\n    sys.exit(3)\n\nfunc()"
# All that a program does with `sys.exit` other than call it, and where its exceptions come from.
LOOKING = """
import copy, inspect, pickle, pydoc, sys, threading, traceback, types
print(pydoc.render_doc(sys.exit, renderer=pydoc.plaintext), pydoc.render_doc(SystemExit, renderer=pydoc.plaintext))
print(inspect.isbuiltin(sys.exit), isinstance(sys.exit, types.BuiltinFunctionType), inspect.isroutine(sys.exit))
print(sys.exit, sys.exit.__name__, sys.exit.__qualname__, sys.exit.__module__, sys.exit.__self__ is sys)
print(inspect.signature(sys.exit), inspect.getdoc(sys.exit), inspect.getmodule(sys.exit) is sys)
print(pickle.loads(pickle.dumps(sys.exit)) is sys.exit, copy.deepcopy(sys.exit) is sys.exit, callable(sys.exit))
print(sys.excepthook is sys.__excepthook__, getattr(sys, '__unraisablehook__', None) is getattr(sys, 'unraisablehook', None))
print(threading.excepthook is getattr(threading, '__excepthook__', threading.excepthook))
print(inspect.getattr_static(SystemExit, 'code').__doc__, len(inspect.stack()), sorted(vars(sys.modules['__main__'])))
print(sys.path, sys.meta_path, sys.path_hooks, [n for n in sys.modules if 'customize' in n or 'rankrun' in n])
def leave(*status):
    try:
        sys.exit(*status)
    except SystemExit as error:
        print(repr(error), error.code, error.args, repr(error.__context__))
        traceback.print_exc()
for status in [(), (None,), (3,), (True,), ('text',), ((1, 2),), ((),), (SystemExit(4),), (KeyError('k'),), (1, 2, 3)]:
    try:
        leave(*status)
    except TypeError:
        print('no such call')
    try:
        1 / 0
    except ZeroDivisionError:
        leave(*status[:1])
"""


def without_times(text):
    """What a profiler or a debugger prints, without addresses, times and the time of day."""
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"\b\d+\.\d+s?\b", "T", text)
    return re.sub(r" +", " ", text)


class Compared(HookTest):
    """Runs a command with the hook and without."""

    def bare(self, **more):
        env = self.agent.environment(**more)
        del env["PYTHONPATH"]
        return env

    def both(self, command, **options):
        """The two results. What the hook told stays with the agent."""
        more = options.pop("more", {})
        with_hook = self.run_to_end(command, env=self.agent.environment(**more), **options)
        return with_hook, self.run_to_end(command, env=self.bare(**more), **options)

    def assert_same(self, command, clean=lambda text: text, **options):
        with_hook, without = self.both(command, **options)
        self.assertEqual(with_hook[0], without[0], with_hook[2])
        self.assertEqual(clean(with_hook[1]), clean(without[1]))
        self.assertEqual(clean(with_hook[2]), clean(without[2]))
        return with_hook


class Tools(Compared):
    @in_each_python((3, 7))
    def test_a_program_that_looks_sees_no_difference(self, python):
        _, out, _ = self.assert_same([python, self.script(LOOKING)], clean=without_times)
        self.assertIn("True True True", out)

    @in_each_python()
    def test_pdb_shows_the_same(self, python):
        for name, program in (("failing", FAILING), ("exiting", EXITING)):
            with self.subTest(program=name):
                command = [python, "-m", "pdb", "-c", "c", self.script(program, name + ".py")]
                _, out, _ = self.assert_same(command, stdin="where\nq\n", more={"TERM": "dumb"})
                self.assertIn("failure!" if name == "failing" else "exited via sys.exit(). Exit status: 3", out)

    @in_each_python()
    def test_pdb_steps_over_an_exit_to_where_it_is_caught(self, python):
        program = EXITING.replace("\nfunc()", "\ntry:\n    func()\nexcept SystemExit as error:\n    print('caught')")
        command = [python, "-m", "pdb", self.script(program)]
        stdin = "until 5\ns\ns\nn\nn\nn\nn\nq\n"
        self.assert_same(command, stdin=stdin, more={"TERM": "dumb"})

    @in_each_python((3, 8))
    def test_profiles_show_the_same_rows(self, python):
        command = [python, "-m", "cProfile", "-s", "name", self.script("import json\njson.dumps([1])\nprint('done')")]

        def rows(text):
            # What is imported depends on what the start has imported: only names count, and those of the program.
            return sorted(line for line in text.splitlines() if "program.py" in line and ".py:" in line)

        with_hook, without = self.both(command)
        self.assertEqual(
            [without_times(row) for row in rows(with_hook[1])], [without_times(row) for row in rows(without[1])]
        )
        self.assertNotIn("sitecustomize", with_hook[1])
        self.assertNotIn("<rankrun>", with_hook[1])

    @in_each_python((3, 8))
    def test_a_profiled_exit_names_no_file_of_ours(self, python):
        with_hook, without = self.both([python, "-m", "cProfile", "-s", "name", self.script(EXITING)])
        self.assertEqual((with_hook[0], with_hook[2]), (without[0], without[2]))
        self.assertNotIn("sitecustomize", with_hook[1])

    @in_each_python((3, 8))
    def test_the_trace_module_prints_the_same_lines(self, python):
        for options in (["--trace"], ["--count", "--missing", "--coverdir", str(self.directory / "cover")]):
            command = [python, "-m", "trace"] + options + [self.script(EXITING)]
            (status, out, err), (bare_status, bare_out, bare_err) = self.both(command)
            self.assertEqual((status, err), (bare_status, bare_err))
            # Before 3.12 a call of `sys.exit` is one of a function, which has no file and no source.
            ours = re.compile(r"^ --- modulename: .*|^<rankrun>.*|^None\(.*", re.MULTILINE)
            self.assertEqual(
                [line for line in out.splitlines() if not ours.match(line)],
                [line for line in bare_out.splitlines() if not ours.match(line)],
            )
            self.assertNotIn("sitecustomize", out)

    @in_each_python()
    def test_faulthandler_shows_the_same_frames(self, python):
        for how in ("faulthandler.dump_traceback()", "os.abort()"):
            program = "import faulthandler, os\nfaulthandler.enable()\ndef func():\n    {}\n\nfunc()".format(how)
            # What a fatal error prints of extension modules depends on what has been imported.
            clean = lambda text: without_times(text.split("\nExtension modules")[0])  # noqa: E731
            _, _, err = self.assert_same([python, self.script(program)], clean=clean)
            self.assertIn("in func", err)

    @in_each_python()
    def test_warnings_name_the_same_places(self, python):
        program = "import warnings\ndef func():\n    warnings.warn('careful', stacklevel=2)\n\nfunc()\nfunc()"
        for options in ([], ["-W", "error"], ["-Wd"], ["-bb", "-Wignore"], ["-X", "dev"]):
            if options[:1] != ["-X"] or python_version(python) >= (3, 7):
                self.assert_same([python] + options + [self.script(program)])
        for more in ({"PYTHONWARNINGS": "error"}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONSAFEPATH": "1"}):
            self.assert_same([python, self.script(program)], more=more)
            self.assert_same([python, "-c", "pass"], more=more)

    @in_each_python((3, 11))
    def test_a_safe_path_has_the_hook_too(self, python):
        self.assert_same([python, "-P", self.script(EXITING)])
        self.assertEqual(told(self.agent.drain()), EXIT_3)

    @in_each_python((3, 8))
    def test_no_bytecode_of_ours_is_left_in_a_directory_of_the_users(self, python):
        prefix = self.directory / "bytecode"
        for _ in range(2):
            self.assert_same([python, "-c", "import sys; sys.exit(3)"], more={"PYTHONPYCACHEPREFIX": str(prefix)})
        self.assertEqual(told(self.agent.drain()), EXIT_3 * 2)
        ours = [str(path) for path in prefix.rglob("*") if "sitecustomize" in path.name or path.name == "hook"]
        self.assertEqual(ours, [])

    @in_each_python((3, 6))
    def test_bytecode_that_is_cut_is_not_kept(self, python):
        shutil.rmtree(str(self.agent.hook / "__pycache__"), ignore_errors=True)
        environment = self.agent.environment()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # The kernel writes a part of what is beyond the limit, as it does on a disk that gets full.
        for limit in ("8", "unlimited"):
            command = ["bash", "-c", 'ulimit -f {}; exec "$@"'.format(limit), "bash", python, "-c", "import sys; sys.exit(3)"]
            code, _, err = self.run_to_end(command, env=environment)
            self.assertEqual((code, err), (3, ""))
        self.assertEqual(told(self.agent.drain()), EXIT_3 * 2)
        self.assertEqual(len(list((self.agent.hook / "__pycache__").iterdir())), 1)

    @in_each_python((3, 6))
    def test_children_of_multiprocessing_see_no_difference(self, python):
        program = (
            "import multiprocessing as mp, sys\n"
            "def look(method):\n"
            "    names = [n for n in sys.modules if 'customize' in n or 'rankrun' in n]\n"
            "    print(method, sys.flags, sys.path, names, type(SystemExit.__dict__['code']).__name__ == 'property')\n"
            "    print(sys.exit, sys.excepthook is sys.__excepthook__)\n"
            "    sys.stdout.flush()\n"
            "    sys.exit(3)\n"
            "if __name__ == '__main__':\n"
            "    for method in ('spawn', 'forkserver'):\n"
            "        child = mp.get_context(method).Process(target=look, args=(method,))\n"
            "        child.start()\n"
            "        child.join()\n"
            "        print(child.exitcode)\n"
            "        sys.stdout.flush()\n"
        )
        _, out, _ = self.assert_same([python, "-B", self.script(program)], clean=without_times)
        self.assertEqual(out.count("3\n"), 2, out)
        self.assertEqual(told(self.agent.drain()), [])

    @in_each_python((3, 8))
    def test_the_list_of_imports_is_as_long_but_for_our_own(self, python):
        with_hook, without = self.both([python, "-X", "importtime", "-c", "pass"])
        names = [
            [line.rsplit("|", 1)[1].strip() for line in err.splitlines() if line.startswith("import time:")]
            for err in (with_hook[2], without[2])
        ]
        self.assertLessEqual(set(names[0]) - set(names[1]), {"sitecustomize", "atexit", "_socket", "gc", "_functools"})
        self.assertLessEqual(set(names[1]), set(names[0]))

    @in_each_python()
    def test_verbose_runs_end_the_same(self, python):
        with_hook, without = self.both([python, "-v", "-c", "print('done')"])
        self.assertEqual(with_hook[:2], without[:2])

    @in_each_python()
    def test_unittest_and_doctest_see_exits_as_ever(self, python):
        program = (
            "import doctest, sys, unittest\n"
            "def func():\n    '''\n    >>> func()\n    Traceback (most recent call last):\n    SystemExit: 3\n    '''\n"
            "    sys.exit(3)\n"
            "class Test(unittest.TestCase):\n"
            "    def test(self):\n"
            "        with self.assertRaises(SystemExit) as caught: func()\n"
            "        self.assertEqual(caught.exception.code, 3)\n"
            "    def test_patched(self):\n"
            "        from unittest import mock\n"
            "        with mock.patch('sys.exit', autospec=True) as exit:\n"
            "            func()\n"
            "        exit.assert_called_once_with(3)\n"
            "print(doctest.testmod())\nunittest.main()"
        )
        _, _, err = self.assert_same([python, self.script(program)], clean=without_times)
        self.assertIn("OK", err)


def python_version(python):
    return next(version for version, program in PYTHONS.items() if program == python)


class Installed(Compared):
    """Tools that are not Python's own."""

    def python(self, environment):
        python = mpi_python(environment)
        if python is None:
            self.skipTest('the Python environment "{}" is not there; cargo xtask env makes it'.format(environment))
        return python

    def test_coverage_measures_and_prints_the_same(self):
        python = self.python("tools")
        for name, program in (("exiting", EXITING), ("failing", FAILING), ("plain", "print('done')")):
            for options in ([], ["--branch"], ["--source", "."], ["--timid"]):
                with self.subTest(program=name, options=options):
                    script = self.script(program, name + ".py")
                    self.assert_same([python, "-m", "coverage", "run"] + options + [script])
                    self.assert_same([python, "-m", "coverage", "report", "-m"])

    def test_ipython_runs_and_reports_the_same(self):
        python = self.python("notebook")
        program = "import sys\nprint(sys.excepthook)\n1/0\n"
        more = {"IPYTHONDIR": str(self.directory / "ipython"), "TERM": "dumb"}
        command = [python, "-m", "IPython", "--no-banner", "--colors=NoColor", "--no-confirm-exit"]
        self.assert_same(command + [self.script(program)], clean=without_times, more=more)
        self.assert_same(command + ["-c", "import sys; sys.exit(3)"], clean=without_times, more=more)
        self.assert_same(
            command + ["--simple-prompt"], clean=without_times, stdin="1/0\n%tb\nimport sys\nsys.exit(3)\n", more=more
        )

    def test_a_notebook_is_executed(self):
        python = self.python("notebook")
        cells = ["import sys\nprint(sys.excepthook.__name__, sys.exit)", "sys.last_value = None\nprint('done')"]
        book = {
            "cells": [
                {"cell_type": "code", "id": str(n), "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
                for n, cell in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.directory / "book.ipynb").write_text(json.dumps(book))
        more = {"IPYTHONDIR": str(self.directory / "ipython"), "JUPYTER_CONFIG_DIR": str(self.directory)}
        command = [python, "-m", "nbconvert", "--to", "markdown", "--execute", "--stdout", "book.ipynb"]
        with_hook, without = self.both(command, more=more)
        self.assertEqual(with_hook[:2], without[:2], with_hook[2])
        self.assertIn("done", with_hook[1])
        self.assertEqual(told(self.agent.drain()), [])


if __name__ == "__main__":
    unittest.main()
