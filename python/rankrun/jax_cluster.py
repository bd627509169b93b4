"""Tells JAX who its processes are, so that `jax.distributed.initialize()` needs no arguments in a rank.

The interpreter hook runs this file when a program imports JAX. Where there is no hook, `import rankrun` does.
It imports nothing of its package: the hook has a copy of this file alone.
"""

import functools
import os
import sys
from typing import Any, Optional

# JAX's base class of all environments is in this module, the environments that JAX knows are in its siblings.
PACKAGE = "jax._src.clusters"
BASE = PACKAGE + ".cluster"

# How launchers number the processes that they start. rankrun removes or sets all of these for its ranks: where one differs
# from the rank's own, a launcher within the rank has started this process, or the user has said so with `-x`.
NUMBERS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
GPU_MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def is_rank() -> bool:
    """Whether this process is a rank for which rankrun holds a port."""
    get = os.environ.get
    own = get("RANKRUN_RANK"), get("RANKRUN_WORLD_SIZE")
    if None in own or "RANKRUN_JAX_COORDINATOR" not in os.environ:
        return False
    return all((get(rank, own[0]), get(size, own[1])) == own for rank, size in NUMBERS)


def device() -> Optional[int]:
    """The one device that this process is to use of those that it sees, `None` for all of them."""
    number = os.environ.get("RANKRUN_JAX_LOCAL_DEVICE")
    if number is None:
        return None
    masks = [os.environ[name] for name in GPU_MASKS if name in os.environ]
    # A script in front of the program may have chosen the rank's device already.
    has_chosen = any(len(mask.split(",")) <= int(number) for mask in masks)
    return None if has_chosen else int(number)


def tell_interface() -> None:
    """Gives JAX's collectives on CPUs the interface that gloo has in torch: else they take the address of the host's own name."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    module = sys.modules.get("jaxlib._jax")
    make = getattr(module, "make_gloo_tcp_collectives", None)
    if interface and make is not None and not isinstance(make, functools.partial):
        module.make_gloo_tcp_collectives = functools.partial(make, interface=interface)  # type: ignore[union-attr]


def register(base: Any) -> None:
    """Adds rankrun's environment to those that JAX knows, as the first. `base` is `jax._src.clusters.ClusterEnv`."""
    tell_interface()
    known = base._cluster_types
    if any(kind.__name__ == "RankrunCluster" for kind in known):
        return

    # JAX adds each subclass to its list. Its releases differ in the arguments that they pass.
    class RankrunCluster(base):  # type: ignore[misc]
        name = "rankrun"
        opt_in_only_method = False

        @classmethod
        def is_env_present(cls) -> bool:
            return is_rank()

        @classmethod
        def get_coordinator_address(
            cls,
            timeout_secs: Optional[int] = None,
            override_coordinator_port: Optional[str] = None,
            **_: object,
        ) -> str:
            address = os.environ["RANKRUN_JAX_COORDINATOR"]
            if override_coordinator_port:
                address = address.rpartition(":")[0] + ":" + override_coordinator_port
            return address

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["RANKRUN_WORLD_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["RANKRUN_RANK"])

        @classmethod
        def get_local_process_id(cls) -> Optional[int]:
            return device()

    # JAX takes the first that is present: Kubernetes or a TPU may be as well.
    known.insert(0, known.pop(known.index(RankrunCluster)))


def register_if_imported() -> bool:
    """Registers the environment if JAX has its base class already. Never fails: JAX's insides may change."""
    module = sys.modules.get(BASE)
    base = getattr(module, "ClusterEnv", None)
    if base is None:
        return False
    try:
        register(base)
    except Exception:
        # `jax.distributed.initialize()` then asks for its arguments, as it does without rankrun.
        pass
    return True


class Watch:
    """Stands on `sys.meta_path` until JAX has imported its base class and imports what comes next."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.startswith(PACKAGE) and register_if_imported() and self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type, unused-ignore]


def register_now_or_later() -> None:
    if not register_if_imported():
        sys.meta_path.insert(0, Watch())  # type: ignore[arg-type, unused-ignore]
