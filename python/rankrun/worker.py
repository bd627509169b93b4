"""What a rank of `launch` runs: `python worker.py DIRECTORY`.

The directory holds `job` with what to prepare and what to call, and gets `RANK.result` or `RANK.error`. Without a
directory, as on several machines, the job comes by stdin, and what the rank returns goes by the worker socket.
"""

import base64
import contextlib
import io
import json
import os
import pickle
import runpy
import socket
import sys
import traceback
from multiprocessing import process, spawn
from types import TracebackType
from typing import IO, Any, Dict, Optional, Type

# Bytes of a result in one line of the worker socket, which takes 64 KiB of text.
_PIECE = 45_000


# What stands between this file and the program's own module.
_LOADERS = (__file__, spawn.__file__, runpy.__file__, "<frozen runpy>")


def main(directory: Optional[str]) -> None:
    sys.excepthook = show
    rank = int(os.environ["RANKRUN_RANK"])
    if directory is not None:
        # That of an attempt before this one.
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, f"{rank}.error"))
    try:
        result = run(job_from(directory), rank)
        # It is pickled here, so that a result that cannot be sent is a failure of the rank that made it.
        data = dump(result)
    except Exception as error:
        if getattr(error, "is_guard_missing", False):
            end_at_program(error.__traceback__)
        # The exception goes on to the top, where it ends this rank as it would end any program.
        hand_over(directory, rank, "error", dump_error(error))
        raise
    hand_over(directory, rank, "result", data)


def job_from(directory: Optional[str]) -> IO[bytes]:
    if directory is not None:
        return open(os.path.join(directory, "job"), "rb")
    job = io.BytesIO(sys.stdin.buffer.read())
    # A rank has no stdin.
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    return job


def run(job: IO[bytes], rank: int) -> Any:
    with job as file:
        preparation = pickle.load(file)
        preparation["name"] = f"rank-{rank}"
        # As long as this is set, `launch` and multiprocessing refuse to start processes: a main module without its
        # `if __name__ == "__main__":` would start them without end.
        current: Any = process.current_process()
        current._inheriting = True
        try:
            spawn.prepare(preparation)
            func, args = load_call(file)
        finally:
            del current._inheriting
    return func(args)


def load_call(file: IO[bytes]) -> Any:
    try:
        return pickle.load(file)
    except AttributeError as error:
        # Created by exec or under a condition that held only in the first process. `launch` finds what it can by itself.
        if "__mp_main__" not in str(error):
            raise
        text = f'{error}: a rank imports the main module, and does not run what is below if __name__ == "__main__":'
        raise AttributeError(text) from None


def dump(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        try:
            import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        data: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return data


def own_frames(entry: Optional[TracebackType]) -> Optional[TracebackType]:
    """A traceback from the first frame of the program itself; all of it if there is none."""
    own = entry
    while own is not None and own.tb_frame.f_code.co_filename in _LOADERS:
        own = own.tb_next
    return own or entry


def end_at_program(entry: Optional[TracebackType]) -> None:
    """Cuts off the frames of this package at the inner end: the place is the line that calls `launch`."""
    last = None
    while entry is not None:
        if os.path.dirname(entry.tb_frame.f_code.co_filename) != os.path.dirname(__file__):
            last = entry
        entry = entry.tb_next
    if last is not None:
        last.tb_next = None


def show(kind: Type[BaseException], error: BaseException, entry: Optional[TracebackType]) -> None:
    """Prints an uncaught exception as Python does, without the frames of this file."""
    if getattr(error, "is_guard_missing", False):
        print(f"{kind.__name__}: {error}", file=sys.stderr)
    else:
        # It prints the traceback that the exception has, whichever it is given.
        own = own_frames(entry)
        sys.__excepthook__(kind, error.with_traceback(own), own)


def dump_error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, own_frames(error.__traceback__)))
    try:
        packed = dump(error)
        # Many exceptions can be pickled and not unpickled, because their __init__ wants more than their args.
        pickle.loads(packed)
    except Exception:
        packed = b""
    return pickle.dumps((text, packed))


def hand_over(directory: Optional[str], rank: int, kind: str, data: bytes) -> None:
    if directory is not None:
        write(directory, f"{rank}.{kind}", data)
    else:
        send(rank, kind, data)


def send(rank: int, kind: str, data: bytes) -> None:
    """Sends it by the worker socket, and waits until the agent has read it all: it reads no more than some of what a
    process that has ended has left behind."""
    hello = {"v": 1, "type": "hello", "pid": os.getpid(), "rank": rank, "kind": "launch"}
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(os.environ["RANKRUN_SOCKET"])
        agent.sendall(line({**hello, "tag": os.environ.get("RANKRUN_WORKER", "")}))
        for at in range(0, max(len(data), 1), _PIECE):
            text = base64.b64encode(data[at : at + _PIECE]).decode("ascii")
            piece = {"v": 1, "type": "result", "error": kind == "error", "data": text}
            agent.sendall(line({**piece, "first": at == 0, "last": at + _PIECE >= len(data)}))
        agent.shutdown(socket.SHUT_WR)
        while agent.recv(4096):
            pass


def line(fields: Dict[str, Any]) -> bytes:
    return json.dumps(fields).encode("ascii") + b"\n"


def write(directory: str, name: str, data: bytes) -> None:
    """Writes a file that is there either whole or not at all: this process may be killed at any time."""
    path = os.path.join(directory, name)
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
