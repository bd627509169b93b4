"""Who this rank is, and what it has to say. A process that rankrun did not start is the only rank of its world."""

import os
import sys
from typing import NoReturn


def _number(name: str, alone: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return alone
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"the environment variable {name} is {text!r}, which is no number") from None


def rank() -> int:
    """This rank's position in the world, from 0."""
    return _number("RANKRUN_RANK", 0)


def world_size() -> int:
    """How many ranks the job has."""
    return _number("RANKRUN_WORLD_SIZE", 1)


def local_rank() -> int:
    """This rank's position among those of its node, from 0."""
    return _number("RANKRUN_LOCAL_RANK", 0)


def attempt() -> int:
    """How often the job has been started again: 0 in its first life."""
    return _number("RANKRUN_ATTEMPT", 0)


def note(text: str) -> None:
    """Says how far this rank is. While notes come, a rank that is busy exiting does not count as stuck.

    It never waits: what rankrun cannot take in at once is dropped, and so is everything where there is no rankrun.
    """
    from rankrun.speaker import say

    say({"type": "note", "text": text}, wait=False)


def progress() -> None:
    """Says that this rank has done a step of its work that a restart will not repeat, such as a checkpoint.

    Where none is done between two failures that are alike, rankrun does not start the job again. It never waits, as
    `note`.
    """
    from rankrun.speaker import say

    say({"type": "progress"}, wait=False)


def ready() -> None:
    """Says that this rank is ready to work: a restart is done when all ranks are. Only for `--ready-timeout`."""
    from rankrun.speaker import say

    say({"type": "ready"}, wait=True)


def abort(code: int = 1, message: str = "") -> NoReturn:
    """Ends the whole job at once, with this rank as the culprit and the message as the cause.

    Neither `finally` blocks nor `atexit` handlers run; `sys.stdout` and `sys.stderr` are flushed.

    Args:
        code: the exit code of the job, 1..255. Any other becomes 1, since a job that was aborted has not succeeded.
        message: what went wrong.
    """
    from rankrun.speaker import say

    told = say({"type": "abort", "code": max(-(2**31), min(code, 2**31 - 1)), "message": message}, wait=True)
    if not told and message:
        # Where nobody listens, the terminal is the only place to say it.
        sys.stderr.write(f"rankrun: rank {rank()} aborted: {message}\n")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # It is closed, full or missing; nothing more can be done for it.
            pass
    os._exit(code if 0 < code < 256 else 1)
