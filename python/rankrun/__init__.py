"""Start the ranks of a distributed job from Python, and know who they are from within.

From the outside, `launch` runs a function in several processes and returns what they returned:

    import rankrun

    def train(config):
        print(rankrun.rank(), "of", rankrun.world_size())
        return 42

    if __name__ == "__main__":
        results = rankrun.launch(train, {"lr": 0.1}, nprocs=4)

From within a rank, however it was started, `rank`, `world_size`, `local_rank` and `attempt` tell who it is, `note`
says how far it is, `progress` and `ready` matter to restarts, and `abort` ends the whole job. They need nothing but the environment, and cost nothing to import.
In a rank, `jax.distributed.initialize()` needs no arguments once this package is imported.

`python -m rankrun` is the command `rankrun`.
"""

import os
from typing import TYPE_CHECKING

from rankrun.job import abort, attempt, local_rank, note, progress, rank, ready, world_size

if TYPE_CHECKING:
    from rankrun.errors import LaunchError, MainProcessError, RemoteTraceback, StartMethodError, WorkerError
    from rankrun.launcher import launch, set_start_method
    from rankrun.ports import Port, free_port

    __version__: str

__all__ = [
    "LaunchError",
    "MainProcessError",
    "Port",
    "RemoteTraceback",
    "StartMethodError",
    "WorkerError",
    "__version__",
    "abort",
    "attempt",
    "free_port",
    "launch",
    "local_rank",
    "note",
    "progress",
    "rank",
    "ready",
    "set_start_method",
    "world_size",
]

# A rank that only asks for its number does not import multiprocessing, which takes 10 ms.
_HOMES = {
    "LaunchError": "rankrun.errors",
    "MainProcessError": "rankrun.errors",
    "RemoteTraceback": "rankrun.errors",
    "StartMethodError": "rankrun.errors",
    "WorkerError": "rankrun.errors",
    "Port": "rankrun.ports",
    "free_port": "rankrun.ports",
    "launch": "rankrun.launcher",
    "set_start_method": "rankrun.launcher",
}

if "RANKRUN_JAX_COORDINATOR" in os.environ:
    from rankrun import jax_cluster

    jax_cluster.register_now_or_later()


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        from rankrun.version import find_version

        value = find_version()
    elif name in _HOMES:
        import importlib

        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(__all__))
