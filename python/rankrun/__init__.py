"""Start the ranks of a distributed job from Python, and know who they are from within.

From the outside, `launch` runs a function in several processes and returns what they returned:

    import rankrun

    def train(config):
        print(rankrun.rank(), "of", rankrun.world_size())
        return 42

    if __name__ == "__main__":
        results = rankrun.launch(train, {"lr": 0.1}, nprocs=4)

From within a rank, however it was started, `rank`, `world_size`, `local_rank` and `attempt` tell who it is, `note`
says how far it is, and `abort` ends the whole job. They need nothing but the environment, and cost nothing to import.

`python -m rankrun` is the command `rankrun`.
"""

from typing import TYPE_CHECKING

from rankrun.job import abort, attempt, local_rank, note, rank, world_size

if TYPE_CHECKING:
    from rankrun.errors import LaunchError, MainProcessError, RemoteTraceback, WorkerError
    from rankrun.launcher import launch, set_start_method
    from rankrun.ports import Port, free_port

__all__ = [
    "LaunchError",
    "MainProcessError",
    "Port",
    "RemoteTraceback",
    "WorkerError",
    "abort",
    "attempt",
    "free_port",
    "launch",
    "local_rank",
    "note",
    "rank",
    "set_start_method",
    "world_size",
]

# A rank that only asks for its number does not import multiprocessing, which takes 10 ms.
_HOMES = {
    "LaunchError": "rankrun.errors",
    "MainProcessError": "rankrun.errors",
    "RemoteTraceback": "rankrun.errors",
    "WorkerError": "rankrun.errors",
    "Port": "rankrun.ports",
    "free_port": "rankrun.ports",
    "launch": "rankrun.launcher",
    "set_start_method": "rankrun.launcher",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(_HOMES))
