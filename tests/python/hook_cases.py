"""Python programs, and what the hook must tell of each in every interpreter.

`TOLD` of a case is what `agent.told` makes of the messages; `STATUS` is the process's own exit status, which the hook must
not change. A case says from which version on it makes sense.
"""

from dataclasses import dataclass, field

EXPECTED_VALUE_ERROR = [("uncaught", "ValueError", "failure!"), ("exiting", 1)]
EXIT_3 = [("uncaught", "SystemExit", "3"), ("exiting", 3)]


@dataclass
class Case:
    program: str
    told: list
    status: int
    since: tuple = (3, 6)
    before: tuple = (4, 0)
    # How the program is started: "script", "command" (-c), "module" (-m) or "stdin".
    how: str = "script"
    options: list = field(default_factory=list)
    stdin: str = ""


CASES = {
    "nothing_is_told_of_success": Case("pass", [], 0),
    "exception": Case("def func():\n    raise ValueError('failure!')\nfunc()", EXPECTED_VALUE_ERROR, 1),
    "exception_of_a_command": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, how="command"),
    "exception_of_a_module": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, how="module"),
    "exception_of_a_script_on_stdin": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, how="stdin"),
    "exception_in_an_import": Case(
        "import broken", [("uncaught", "ZeroDivisionError", "division by zero"), ("exiting", 1)], 1
    ),
    "exception_of_a_class_of_the_program": Case(
        "class Broken(Exception): pass\nraise Broken('failure!')",
        [("uncaught", "Broken", "failure!"), ("exiting", 1)],
        1,
    ),
    "exception_of_a_library": Case(
        "import socket; raise socket.gaierror(1, 'failure!')",
        [("uncaught", "socket.gaierror", "[Errno 1] failure!"), ("exiting", 1)],
        1,
    ),
    "syntax_error": Case("def broken(:\n", None, 1),
    "sys_exit": Case("import sys; sys.exit(3)", EXIT_3, 3),
    "sys_exit_of_a_command": Case("import sys; sys.exit(3)", EXIT_3, 3, how="command"),
    "sys_exit_of_a_module": Case("import sys; sys.exit(3)", EXIT_3, 3, how="module"),
    "raise_system_exit": Case("def main(): return 3\nraise SystemExit(main())", EXIT_3, 3),
    "site_exit": Case("exit(3)", EXIT_3, 3),
    "system_exit_with_a_text": Case(
        "raise SystemExit('failure!')", [("uncaught", "SystemExit", "failure!"), ("exiting", 1)], 1
    ),
    "sys_exit_with_a_tuple": Case(
        "import sys; sys.exit((1, 2))", [("uncaught", "SystemExit", "(1, 2)"), ("exiting", 1)], 1
    ),
    "sys_exit_with_an_exception": Case("import sys; sys.exit(SystemExit(3))", EXIT_3, 3),
    "subclass_of_system_exit": Case(
        "class Leave(SystemExit): pass\nraise Leave(3)", [("uncaught", "Leave", "3"), ("exiting", 3)], 3
    ),
    "system_exit_that_its_own_frame_keeps_alive": Case("def f():\n    e = SystemExit(3)\n    raise e\nf()", EXIT_3, 3),
    "system_exit_that_was_handled_and_raised_again": Case(
        "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as error:\n    saved = error\n    raise", EXIT_3, 3
    ),
    "system_exit_out_of_a_with_block": Case(
        "import sys, threading\nwith threading.Lock():\n    sys.exit(3)", EXIT_3, 3
    ),
    "system_exit_with_a_changed_code": Case(
        "error = SystemExit(7)\nerror.code = 3\nraise error", [("uncaught", "SystemExit", "7"), ("exiting", 3)], 3
    ),
    "sys_exit_with_a_negative_code": Case(
        "import sys; sys.exit(-1)", [("uncaught", "SystemExit", "-1"), ("exiting", 255)], 255
    ),
    "sys_exit_with_true": Case("import sys; sys.exit(True)", [("uncaught", "SystemExit", "True"), ("exiting", 1)], 1),
    "sys_exit_zero": Case("import sys; sys.exit(0)", [], 0),
    "sys_exit_none": Case("import sys; sys.exit()", [], 0),
    "sys_exit_that_the_system_cuts_to_zero": Case("import sys; sys.exit(256)", [], 0),
    "caught_system_exit": Case(
        "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit as error:\n    assert error.code == 3 and error.args == (3,)",
        [],
        0,
    ),
    "caught_system_exit_whose_code_is_looked_at": Case(
        "try:\n    raise SystemExit('x')\nexcept SystemExit as error:\n    assert error.code == 'x'; saved = error",
        [],
        0,
    ),
    "argparse_error_that_is_caught": Case(
        "import argparse\ntry:\n    argparse.ArgumentParser().parse_args(['-x'])\nexcept SystemExit as e:\n    assert e.code == 2",
        [],
        0,
    ),
    "argparse_error": Case(
        "import argparse\nargparse.ArgumentParser().parse_args(['-x'])",
        [("uncaught", "SystemExit", "2"), ("exiting", 2)],
        2,
    ),
    "system_exit_that_is_garbage": Case(
        "import gc\ndef f():\n    try:\n        raise SystemExit(3)\n    except SystemExit as e:\n        x = e\nf(); gc.collect()",
        [],
        0,
    ),
    "sys_exit_in_a_thread": Case(
        "import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()", [], 0
    ),
    "own_excepthook_that_chains": Case(
        "import sys\nold = sys.excepthook\ndef hook(*a):\n    old(*a)\nsys.excepthook = hook\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR,
        1,
    ),
    "own_excepthook_that_does_not_chain": Case(
        "import sys\nsys.excepthook = lambda *a: None\nraise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1
    ),
    "own_excepthook_that_fails": Case(
        "import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR,
        1,
    ),
    "own_excepthook_that_ends_the_process": Case(
        "import os, sys\nsys.excepthook = lambda *a: os._exit(7)\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR[:1],
        7,
    ),
    "own_excepthook_that_exits_with_failure": Case(
        "import sys\nsys.excepthook = lambda *a: sys.exit(7)\nraise ValueError('failure!')",
        [("uncaught", "ValueError", "failure!"), ("uncaught", "SystemExit", "7"), ("exiting", 7)],
        7,
    ),
    "own_excepthook_that_exits_with_success": Case(
        "import sys\nsys.excepthook = lambda *a: sys.exit(0)\nraise ValueError('failure!')",
        [("uncaught", "ValueError", "failure!"), ("exiting", 0)],
        0,
    ),
    "no_excepthook": Case("import sys\ndel sys.excepthook\nraise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1),
    "excepthook_called_by_the_program": Case(
        "import sys\ntry:\n    1/0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())", [], 0
    ),
    "excepthook_is_the_interpreters_own": Case("import sys; assert sys.excepthook is sys.__excepthook__", [], 0),
    "sudden_exit": Case("import os; os._exit(3)", [], 3),
    "signal": Case("import os; os.kill(os.getpid(), 9)", [], -9),
    "keyboard_interrupt": Case(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
        [("uncaught", "KeyboardInterrupt", ""), ("exiting", 130)],
        -2,
        since=(3, 8),
    ),
    "caught_keyboard_interrupt": Case("try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    pass", [], 0),
    "exception_in_a_thread": Case(
        "import threading\nt = threading.Thread(target=int, args=('x',)); t.start(); t.join()",
        [("thread", "ValueError", "invalid literal for int() with base 10: 'x'")],
        0,
        since=(3, 8),
    ),
    "exception_in_a_thread_with_an_own_hook": Case(
        "import threading\nthreading.excepthook = lambda a: None\nt = threading.Thread(target=int, args=('x',))\nt.start(); t.join()",
        [],
        0,
        since=(3, 8),
    ),
    "unraisable_exception": Case(
        "class A:\n    def __del__(self): raise ValueError('failure!')\nA()",
        [("unraisable", "ValueError", "failure!")],
        0,
        since=(3, 8),
    ),
    "exception_in_an_atexit_handler": Case(
        "import atexit\n@atexit.register\ndef f(): raise ValueError('failure!')",
        [("unraisable", "ValueError", "failure!")],
        0,
        since=(3, 10),
    ),
    "thousands_of_failed_threads": Case(
        "import threading\nthreading.excepthook.__call__\n"
        "for i in range(100):\n    t = threading.Thread(target=int, args=('x',)); t.start(); t.join()",
        [("thread", "ValueError", "invalid literal for int() with base 10: 'x'")] * 16,
        0,
        since=(3, 8),
    ),
    "fork_that_raises": Case(
        "import os\npid = os.fork()\nif pid == 0: raise ValueError('failure!')\nassert os.waitpid(pid, 0)[1] == 256",
        [],
        0,
    ),
    "fork_that_exits": Case(
        "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(3)\nassert os.waitpid(pid, 0)[1] == 768", [], 0
    ),
    "pytest_like_use_of_last_value": Case(
        "import sys\ntry:\n    del sys.last_value\nexcept AttributeError:\n    pass\n"
        "try:\n    1/0\nexcept Exception as e:\n    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()",
        [],
        0,
    ),
    "exception_after_somebody_used_last_value": Case(
        "import sys\ntry:\n    1/0\nexcept Exception as e:\n    sys.last_value = e\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR,
        1,
    ),
    "code_interact": Case(
        "import code\nassert not isinstance(code.interact(), int)\n", [], 0, stdin="1/0\nraise ValueError('failure!')\n"
    ),
    "interactive_after_an_exception": Case("raise ValueError('failure!')", [], 0, options=["-i"], stdin="1/0\n"),
    "interactive_that_exits": Case("pass", EXIT_3, 3, options=["-i"], stdin="import sys\nsys.exit(3)\n"),
    "inspect_set_by_the_program": Case(
        "import os\nos.environ['PYTHONINSPECT'] = '1'\nraise ValueError('failure!')", [], 1, stdin="pass\n"
    ),
    "message_that_is_not_utf_8": Case(
        "raise ValueError(b'caf\\xe9'.decode('utf-8', 'surrogateescape'))",
        [("uncaught", "ValueError", "caf?"), ("exiting", 1)],
        1,
    ),
    "message_with_everything": Case(
        "raise ValueError('\\\"\\\\\\n\\t\\x00\\x7f\\u00e9\\u2028\\U0001f600')",
        [("uncaught", "ValueError", '"\\\n\t\x00\x7f\u00e9\u2028\U0001f600'), ("exiting", 1)],
        1,
    ),
    "str_that_raises": Case(
        "class Odd(Exception):\n    def __str__(self): raise SystemExit(9)\nraise Odd()",
        [("uncaught", "Odd", "<exception str() failed>"), ("exiting", 1)],
        None,
    ),
    "sigpipe_with_its_default_action": Case(
        "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR,
        1,
    ),
    "socket_with_a_default_timeout": Case(
        "import socket\nsocket.setdefaulttimeout(1e-6)\nraise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1
    ),
    "all_descriptors_closed": Case(
        "import os\nos.closerange(3, 100)\nos.open('/dev/null', 0)\nraise ValueError('failure!')",
        EXPECTED_VALUE_ERROR,
        1,
    ),
    "changed_directory_and_environment": Case(
        "import os\nos.chdir('/')\nos.environ.clear()\nraise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1
    ),
    "warnings_are_errors": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, options=["-Werror", "-bb"]),
    "development_mode": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, since=(3, 7), options=["-Xdev"]),
    "optimized": Case("raise ValueError('failure!')", EXPECTED_VALUE_ERROR, 1, options=["-OO"]),
    "no_site": Case("raise ValueError('failure!')", [], 1, options=["-S"]),
    "isolated": Case("raise ValueError('failure!')", [], 1, options=["-I"]),
    "ignored_environment": Case("raise ValueError('failure!')", [], 1, options=["-E"]),
    "memory_error": Case("raise MemoryError('failure!')", [("uncaught", "MemoryError", "failure!"), ("exiting", 1)], 1),
    "pickled_system_exit": Case(
        "import copy, pickle\ne = pickle.loads(pickle.dumps(SystemExit(3))); assert e.code == 3 and copy.copy(e).code == 3",
        [],
        0,
    ),
    "asyncio": Case(
        "import asyncio\nasync def main(): raise ValueError('failure!')\nasyncio.run(main())",
        EXPECTED_VALUE_ERROR,
        1,
        since=(3, 7),
    ),
    "exception_in_a_generator": Case(
        "def g():\n    raise ValueError('failure!')\n    yield\nlist(g())", EXPECTED_VALUE_ERROR, 1
    ),
}

for _method in ("fork", "spawn", "forkserver"):
    _setup = (
        "import multiprocessing as mp\n"
        "def child(how):\n    if how == 'raise': raise ValueError('failure!')\n    raise SystemExit(3)\n"
        "if __name__ == '__main__':\n"
        "    mp.set_start_method('{}')\n".format(_method)
    )
    _one = "    p = mp.Process(target=child, args=('{}',)); p.start(); p.join(); assert p.exitcode == {}, p.exitcode\n"
    CASES["multiprocessing_{}_child_that_raises".format(_method)] = Case(_setup + _one.format("raise", 1), [], 0)
    CASES["multiprocessing_{}_child_that_exits".format(_method)] = Case(_setup + _one.format("exit", 3), [], 0)
    CASES["multiprocessing_{}_pool".format(_method)] = Case(
        _setup + "    with mp.Pool(2) as pool:\n        pool.map(child, ['raise'])\n",
        [("uncaught", "ValueError", "failure!"), ("exiting", 1)],
        1,
    )

# Where an exception does not end the process: `uncaught` is told at once, `exiting` only after stdin has been closed.
STUCK = {
    "live_thread": "import sys, threading\nthreading.Thread(target=sys.stdin.read).start()\nraise ValueError('failure!')",
    "live_thread_and_own_hook": (
        "import sys, threading\nthreading.Thread(target=sys.stdin.read).start()\n"
        "sys.excepthook = lambda *a: None\nraise ValueError('failure!')"
    ),
    "pending_executor": (
        "import sys\nfrom concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(sys.stdin.read)\n"
        "raise ValueError('failure!')"
    ),
    "live_child": (
        "import os, sys, multiprocessing as mp\n"
        "def child(fd):\n    os.read(fd, 1)\n"
        "if __name__ == '__main__':\n"
        "    mp.set_start_method('fork')\n    mp.Process(target=child, args=(os.dup(0),)).start()\n"
        "    raise ValueError('failure!')"
    ),
    "blocking_atexit": "import atexit, sys\natexit.register(sys.stdin.read)\nraise ValueError('failure!')",
    "blocking_atexit_and_sys_exit": "import atexit, sys\natexit.register(sys.stdin.read)\nsys.exit(3)",
}
