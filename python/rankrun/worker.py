"""What a rank of `launch` runs: `python worker.py DIRECTORY`.

The directory holds `job` with what to prepare and what to call, and gets `RANK.result` or `RANK.error`.
"""

import contextlib
import os
import pickle
import sys
import traceback
from multiprocessing import process, spawn
from typing import Any


def main(directory: str) -> None:
    rank = int(os.environ["RANKRUN_RANK"])
    # That of an attempt before this one.
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(directory, f"{rank}.error"))
    try:
        result = run(directory, rank)
        # It is pickled here, so that a result that cannot be sent is a failure of the rank that made it.
        data = dump(result)
    except Exception as error:
        # The exception goes on to the top, where it ends this rank as it would end any program.
        write(directory, f"{rank}.error", dump_error(error))
        raise
    write(directory, f"{rank}.result", data)


def run(directory: str, rank: int) -> Any:
    with open(os.path.join(directory, "job"), "rb") as file:
        preparation = pickle.load(file)
        preparation["name"] = f"rank-{rank}"
        # As long as this is set, `launch` and multiprocessing refuse to start processes: a main module without its
        # `if __name__ == "__main__":` would start them without end.
        current: Any = process.current_process()
        current._inheriting = True
        try:
            spawn.prepare(preparation)
            func, args = pickle.load(file)
        finally:
            del current._inheriting
    return func(args)


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


def dump_error(error: BaseException) -> bytes:
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename == __file__:
        entry = entry.tb_next
    text = "".join(traceback.format_exception(type(error), error, entry))
    try:
        packed = dump(error)
        # Many exceptions can be pickled and not unpickled, because their __init__ wants more than their args.
        pickle.loads(packed)
    except Exception:
        packed = b""
    return pickle.dumps((text, packed))


def write(directory: str, name: str, data: bytes) -> None:
    """Writes a file that is there either whole or not at all: this process may be killed at any time."""
    path = os.path.join(directory, name)
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1])
