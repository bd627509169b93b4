"""`launch`: a function in several processes, by way of the command `rankrun`."""

import base64
import io
import json
import multiprocessing
import operator
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import process, spawn
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from rankrun.binary import find_binary
from rankrun.errors import LaunchError, MainProcessError, RemoteTraceback, StartMethodError, WorkerError
from rankrun.guard import guard_of
from rankrun.on_failure import Listener, OnFailure

A = TypeVar("A")
R = TypeVar("R")

_START_METHODS = ("fork", "spawn", "forkserver")

# After rankrun was told to stop, it needs its `--grace` at most; this is for a rankrun that is itself stopped or stuck.
_LAST_RESORT = 90.0


def launch(
    func: Callable[[A], R],
    args: A,
    nprocs: int,
    master_addr: str = "localhost",
    master_port: Optional[int] = None,
    *,
    hosts: Union[str, Sequence[str], None] = None,
    env: Optional[Mapping[str, str]] = None,
    grace: Optional[float] = None,
    preload: Union[str, Sequence[str], None] = None,
    options: Sequence[str] = (),
    report_dir: Union[str, "os.PathLike[str]", None] = None,
    on_failure: Optional[OnFailure] = None,
) -> List[R]:
    """Run `func(args)` in `nprocs` processes of this machine, or of several, and return what they return, by rank.

    Each rank is a fresh interpreter, whatever `set_start_method` says: it imports the module that `func` comes from,
    and has the environment that rankrun gives to ranks (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
    `MASTER_PORT`, PMI). A script that calls this at its top level needs `if __name__ == "__main__":`, as with
    multiprocessing. Functions that cannot be imported (those of a notebook, lambdas, inner functions, those defined
    below that guard) need the package `cloudpickle`.

    When a rank fails, all others are ended, and when this function returns or raises, no process of the job is left.
    The environment of this process is not changed. SIGINT and SIGTERM to this process end the job; the handlers
    that were there before are put back. Outside the main thread Python allows no handlers, and there are none. If this
    process is killed, the job ends too.

    Args:
        func: what each rank calls, with exactly one argument.
        args: that argument. It is pickled once.
        nprocs: how many ranks, at least 1.
        master_addr: the ranks' `MASTER_ADDR`. With `hosts`, `localhost` stands for an address of the first machine that the
            others reach.
        master_port: the ranks' `MASTER_PORT`. By default rankrun picks a port and keeps it for the job.
        hosts: the machines, as `--hosts` takes them: `"node0:4,node1:4"`, or a list of such words. They are reached by ssh,
            and have the same Python, with this package and the module of `func`, in the same place.
        env: variables that are set in the ranks' environment on top of this process's own.
        grace: seconds from SIGTERM to SIGKILL when ranks are ended. The default is rankrun's.
        preload: modules that one interpreter on each machine imports, and from which the ranks are forked (`--preload`): `["torch"]`, or
            `"auto"` for the installed packages that this process has imported.
        options: further options of the command `rankrun`, such as `["--tag", "--log-dir", "logs"]`.
        report_dir: where the report of the job is written. By default that of a failed job is in a new directory
            below `$XDG_STATE_HOME/rankrun` or `~/.local/state/rankrun`.
        on_failure: called after each failure with the report (`docs/report.md`), in a thread of this process. It returns
            `"restart"`, `"wait 30s"` or `"stop"`, or `None` for what the options say (`["--restart", "3"]`). If it
            raises, or takes longer than `--on-failure-timeout`, they decide.

    Returns:
        The results, the one of rank 0 first. A rank that ended itself with `sys.exit(0)` has `None`.

    Raises:
        WorkerError: a rank failed; its `__cause__` shows the traceback.
        MainProcessError: SIGINT or SIGTERM to this process ended the job.
        LaunchError: the job could not be started, or failed as a whole.
        pickle.PicklingError: `func` or `args` cannot be sent to the ranks; nothing was started.
        ValueError: `nprocs` is less than 1, `master_port` is no port, or both `on_failure` and the option `--on-failure` are given.
        TypeError: an argument is of the wrong kind, such as a `nprocs` that is a string.
        RuntimeError: a rank that imports the main module has called this: the `__main__` guard is missing.
        FileNotFoundError: the command `rankrun` is missing.
    """
    _refuse_import_by_rank()
    nprocs = _count(nprocs)
    _check_kinds(env, grace, options)
    if not callable(func):
        raise TypeError(f"func is {func!r}, and must be a function")
    if not (hosts is None or isinstance(hosts, str) or _is_words(hosts)):
        raise TypeError(f"hosts is {hosts!r}, and must be a string or a list of strings")
    if not (preload is None or isinstance(preload, str) or _is_words(preload)):
        raise TypeError(f"preload is {preload!r}, and must be a list of modules")
    if master_port is not None and not 1 <= int(master_port) <= 65535:
        raise ValueError(f"master_port is {master_port!r}, and must be from 1 to 65535")
    if on_failure is not None:
        if not callable(on_failure):
            raise TypeError(f"on_failure is {on_failure!r}, and must be a function; a command is options=['--on-failure', ...]")
        if any(option == "--on-failure" or option.startswith("--on-failure=") for option in options):
            raise ValueError("on_failure and the option --on-failure both decide: leave one of them out")
    binary = find_binary()
    job = _pickle_job(func, args)
    own_report_dir = report_dir is None
    reports = _new_report_dir() if report_dir is None else Path(report_dir).absolute()
    with tempfile.TemporaryDirectory(prefix="rankrun-") as name:
        directory = Path(name)
        (directory / "job").write_bytes(job)
        command = [binary, "-n", str(nprocs), "--stdin", "none" if hosts is None else "all", "--die-with-parent"]
        # Values stay off the command line, where every user of the machine could read them.
        variables = dict(env or {})
        if hosts is None or master_addr != "localhost":
            variables["MASTER_ADDR"] = master_addr
        if master_port is not None:
            variables["MASTER_PORT"] = str(int(master_port))
        for variable in variables:
            command += ["-x", variable]
        if grace is not None:
            command += ["--grace", f"{round(grace * 1000)}ms"]
        modules = _modules(preload)
        if modules:
            command += ["--preload", ",".join(modules)]
        if reports is not None:
            command += ["--report-dir", str(reports)]
        program = [*_interpreter(), os.path.join(os.path.dirname(__file__), "worker.py")]
        environment = {**os.environ, **variables}
        stdin = None
        if hosts is None:
            program.append(name)
        else:
            command += ["--hosts", hosts if isinstance(hosts, str) else ",".join(hosts)]
            # The other machines do not see our directory: the job goes there by stdin, and the results come back by rankrun.
            environment["RANKRUN_LAUNCH_RESULTS"] = name
            stdin = directory / "job"
        if on_failure is None:
            code = _run([*command, *options, *program], environment, stdin)
        else:
            with Listener(on_failure, name) as listener:
                asks = listener.options(_interpreter())
                code = _run([*command, *asks, *options, *program], environment, stdin)
        if hosts is not None:
            _decode(directory)
        if code == 0:
            if own_report_dir and reports is not None:
                shutil.rmtree(reports, ignore_errors=True)
            return [_result(directory, rank) for rank in range(nprocs)]
        raise _failure(code, directory, reports, func)


def set_start_method(method: str) -> None:
    """Choose how multiprocessing starts processes, in this process and in the ranks that `launch` starts from it.

    The ranks themselves are always fresh interpreters. This concerns what they start: DataLoader workers, process
    pools, Chainer's `MultiprocessIterator`.

    * `"fork"`: quick, and shares the parent's memory. The child also shares what must not be shared: the MPI library,
      its InfiniBand queue pairs and registered memory, CUDA's context, and locks that other threads hold. A child that
      touches MPI or CUDA crashes or hangs, and registered memory may be corrupted even if it does not. Only before
      MPI_Init, or without InfiniBand and CUDA.
    * `"spawn"`: a fresh interpreter for each process, which imports the main module again. It shares nothing, and is
      safe with MPI, InfiniBand and CUDA. What the child gets must be picklable; a start takes as long as the imports.
    * `"forkserver"`: children are forked from a server process, which is itself a fresh interpreter. It is as safe as
      `"spawn"` and quicker, as long as what is preloaded into the server starts neither MPI nor CUDA. It starts with
      the first process, or by `multiprocessing.forkserver.ensure_running()`.

    Call it once, before anything of `multiprocessing` is used, and below `if __name__ == "__main__":`.

    Raises:
        StartMethodError: there is no such method, or not on this platform. It is a `ValueError` and an `AssertionError`.
        RuntimeError: a method has been chosen before.
    """
    if method not in _START_METHODS:
        raise StartMethodError(f'start method {method!r} is none of "fork", "spawn" and "forkserver"')
    available = multiprocessing.get_all_start_methods()
    if method not in available:
        names = " and ".join(f'"{name}"' for name in available)
        raise StartMethodError(f'start method "{method}" does not exist on this platform, which has {names}')
    try:
        multiprocessing.set_start_method(method)
    except RuntimeError:
        chosen = multiprocessing.get_start_method()
        raise RuntimeError(
            f'cannot choose the start method "{method}": "{chosen}" has been chosen before, by an earlier call or by '
            f'the first use of multiprocessing; choose once, below if __name__ == "__main__":'
        ) from None


def _refuse_import_by_rank() -> None:
    """A main module without its guard calls `launch` again in each rank that imports it."""
    if not getattr(process.current_process(), "_inheriting", False):
        return
    error = RuntimeError(
        "a rank that imports this module would start the ranks again: call launch() below if __name__ == '__main__':"
    )
    # The message has all there is to know: worker.py prints no traceback.
    error.is_guard_missing = True  # type: ignore[attr-defined]
    raise error


def _count(nprocs: int) -> int:
    try:
        number = operator.index(nprocs)
    except TypeError:
        raise TypeError(f"nprocs is {nprocs!r}, and must be an integer") from None
    if number < 1:
        raise ValueError(f"nprocs is {nprocs}, and must be at least 1")
    return number


def _check_kinds(env: Optional[Mapping[str, str]], grace: Optional[float], options: Sequence[str]) -> None:
    """What would otherwise fail far from here, or be taken for something else."""
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env has {name!r}: {value!r}, and must have a string for each name")
    if grace is not None and (isinstance(grace, str) or not grace >= 0):
        raise (TypeError if isinstance(grace, str) else ValueError)(f"grace is {grace!r}, and must be a number of seconds")
    if not _is_words(options):
        raise TypeError(f"options is {options!r}, and must be a list of strings, one for each word")


def _modules(preload: Union[str, Sequence[str], None]) -> List[str]:
    """The modules that ranks are to find imported."""
    if preload != "auto":
        return [preload] if isinstance(preload, str) else list(preload or ())
    # Those connect processes when they are imported, or start threads.
    never = {"mpi4py", "mpi4jax", "horovod", "chainermn", __name__.partition(".")[0]}
    packages = ("site-packages", "dist-packages")

    def is_installed(name: str, module: object) -> bool:
        spec = getattr(module, "__spec__", None)
        parts = Path(getattr(spec, "origin", None) or "").parts
        return "." not in name and name not in never and name.isidentifier() and any(part in packages for part in parts)

    return [name for name, module in list(sys.modules.items()) if is_installed(name, module)]


def _is_words(words: object) -> bool:
    # A string is a sequence of its letters. Empty bytes have no element that is not a string.
    if not isinstance(words, Sequence) or isinstance(words, (str, bytes, bytearray)):
        return False
    return all(isinstance(word, str) for word in words)


def _interpreter() -> List[str]:
    executable = spawn.get_executable() or sys.executable
    # -I, -E, -O, -W, -X and their like: what this interpreter was started with. multiprocessing does the same.
    flags: List[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [os.fsdecode(executable), *flags]


def _new_report_dir() -> Optional[Path]:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "rankrun" / secrets.token_hex(4) if os.path.isabs(state) else None


def _pickle_job(func: Callable[[A], R], args: A) -> bytes:
    """Two pickles: what `multiprocessing.spawn.prepare` needs, and the call."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    preparation: Dict[str, Any] = spawn.get_preparation_data("rank")
    if chosen is None:
        # It has fixed the default, here and for the ranks: the program may still choose.
        multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type, unused-ignore]
        preparation.pop("start_method", None)
    # The key guards sockets between the processes of this program, to which the ranks belong.
    preparation["authkey"] = bytes(process.current_process().authkey)
    main_path = preparation.get("init_main_from_path")
    if main_path is not None and not os.path.isfile(main_path):
        # Python was started with `-` or `-c`; there is no file that the ranks could import.
        del preparation["init_main_from_path"]
    has_main = "init_main_from_path" in preparation or "init_main_from_name" in preparation
    return pickle.dumps(preparation) + _pickle_call(func, args, has_main)


class _Pickler(pickle.Pickler):
    """Refuses functions and classes that the ranks could not import."""

    def __init__(self, file: io.BytesIO, has_main: bool) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.has_main = has_main

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            if not self.has_main:
                raise pickle.PicklingError(f"{obj.__qualname__} is defined in a main program that cannot be imported")
            line = guard_of(obj)
            if line is not None:
                raise pickle.PicklingError(
                    f'{obj.__qualname__} is defined below the guard if __name__ == "__main__": (line {line}), '
                    f"which the ranks do not run"
                )
        return NotImplemented


def _pickle_call(func: Callable[[A], R], args: A, has_main: bool) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, has_main).dump((func, args))
        return file.getvalue()
    except Exception as error:
        try:
            import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            hint = 'define it at the top level of a module, above the guard, or "pip install cloudpickle"'
            name = getattr(func, "__qualname__", repr(func))
            raise pickle.PicklingError(f"cannot send {name} and its argument to the ranks: {error}; {hint}") from error
        try:
            data: bytes = cloudpickle.dumps((func, args), pickle.HIGHEST_PROTOCOL)
            return data
        except Exception as worse:
            name = getattr(func, "__qualname__", repr(func))
            raise pickle.PicklingError(f"cannot send {name} and its argument to the ranks: {worse}") from worse


def _decode(directory: Path) -> None:
    """What came by the worker sockets is in base64."""
    for path in [*directory.glob("*.result"), *directory.glob("*.error")]:
        whole = b"".join(base64.b64decode(piece) for piece in path.read_bytes().split(b"\n"))
        written = path.stat()
        path.write_bytes(whole)
        # It tells which of several failed first.
        os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))


def _result(directory: Path, rank: int) -> Any:
    try:
        data = (directory / f"{rank}.result").read_bytes()
    except FileNotFoundError:
        return None
    return pickle.loads(data)


def _run(command: Sequence[str], env: Mapping[str, str], stdin: Optional[Path]) -> int:
    """Runs rankrun, and returns its exit code. Raises `MainProcessError` if a signal to this process has ended it."""
    received: List[int] = []
    child: List["subprocess.Popen[bytes]"] = []

    def forward(number: int, _: Optional[FrameType]) -> None:
        received.append(number)
        for started in child:
            started.send_signal(number)

    previous = _install(forward)
    try:
        with open(stdin or os.devnull, "rb") as source:
            started = subprocess.Popen(command, env=env, stdin=source)
        child.append(started)
        try:
            for number in received:
                # It came while the process was being started, and has not been passed on.
                started.send_signal(number)
            code = started.wait()
        except BaseException:
            # KeyboardInterrupt, where there are no handlers, or whatever else a caller's handler raises.
            _end(started)
            raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise MainProcessError(signal_no=received[0])
    return code


def _install(handler: Callable[[int, Optional[FrameType]], None]) -> Dict[int, Any]:
    """Handles SIGINT and SIGTERM, and returns the handlers that were there."""
    previous: Dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            # What is ignored, as under nohup, stays ignored; what was not installed from Python could not be put back.
            if before is not None and before is not signal.SIG_IGN:
                previous[number] = before
                signal.signal(number, handler)
    return previous


def _end(started: "subprocess.Popen[bytes]") -> None:
    started.terminate()
    try:
        started.wait(_LAST_RESORT)
    except BaseException:
        # Its guard ends the job when it is gone.
        started.kill()
        started.wait()


def _failure(code: int, directory: Path, reports: Optional[Path], func: Callable[..., Any]) -> Exception:
    report = _read_report(reports)
    culprit = (report or {}).get("culprit") or {}
    worker: Optional[int] = culprit.get("rank")
    if worker is None:
        worker = _first_error(directory) if report is None else None
    if worker is None:
        summary = (report or {}).get("summary")
        what = summary or ("it was ended by a signal" if code < 0 else "its own message is above")
        return LaunchError(f"rankrun failed with exit code {code}: {what}", exitcode=code, report=report)
    if (report or {}).get("class") in ("signal", "out-of-memory") and code > 128:
        code = 128 - code
    name = getattr(func, "__name__", repr(func))
    text, exception = _remote_error(directory, worker)
    error = WorkerError(
        msg=f"{name} failed with error code: {code}",
        exitcode=code,
        worker_id=worker,
        exception=exception,
        report=report,
    )
    error.__cause__ = RemoteTraceback(text) if text is not None else None
    return error


def _read_report(reports: Optional[Path]) -> Optional[Dict[str, Any]]:
    if reports is None:
        return None
    try:
        report = json.loads((reports / "report.json").read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _first_error(directory: Path) -> Optional[int]:
    errors = sorted(directory.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    return int(errors[0].stem) if errors else None


def _remote_error(directory: Path, rank: int) -> Tuple[Optional[str], Optional[BaseException]]:
    try:
        text, packed = pickle.loads((directory / f"{rank}.error").read_bytes())
    except FileNotFoundError:
        return None, None
    try:
        exception = pickle.loads(packed) if packed else None
    except Exception:
        # Its class may be one that only the rank knows.
        exception = None
    return text, exception
