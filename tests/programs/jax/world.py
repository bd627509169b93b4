"""A program of JAX: `world.py WHAT`. Rank 1 does what is asked for once all ranks have met."""

import os
import socket
import sys

what = sys.argv[1]
rank = int(os.environ["RANKRUN_RANK"])
if what == "leave-before" and rank == 1:
    sys.exit(7)
if what == "leave-quietly" and rank == 1:
    sys.exit(0)
if what == "package":
    # In an isolated interpreter there is no hook.
    sys.path.insert(0, sys.argv[2])
    import rankrun  # noqa: F401

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

if what == "arguments":
    address = "127.0.0.1:" + os.environ["MASTER_PORT"]
    jax.distributed.initialize(address, int(os.environ["WORLD_SIZE"]), rank, local_device_ids=[0])
else:
    address = os.environ["RANKRUN_JAX_COORDINATOR"]
    store = socket.socket(socket.AF_INET6 if ":" in os.environ["MASTER_ADDR"] else socket.AF_INET)
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if rank == 0:
        # torch in the same program has a port of its own.
        place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True":
            store.connect(place)
        else:
            store.bind(place)
            store.listen()
    # By default JAX waits 300 s for a rank that does not come.
    jax.distributed.initialize(initialization_timeout=5 if what == "leave-quietly" else 120)

from jax._src.distributed import global_state

assert global_state.coordinator_address == address, (global_state.coordinator_address, address)
assert jax.process_index() == rank
ranks = multihost_utils.process_allgather(jnp.array([10 * rank])).ravel().tolist()
sent = multihost_utils.broadcast_one_to_all(jnp.array([rank + 7])).tolist()
print(f"rank {jax.process_index()} of {jax.process_count()}: {ranks} {sent}, {jax.local_device_count()} device", flush=True)
if rank == 1:
    if what == "raise":
        raise ValueError("bad batch 7")
    if what == "exit":
        sys.exit(3)
    if what == "die":
        os._exit(4)
if what in ("raise", "exit", "die"):
    # Nobody comes.
    multihost_utils.sync_global_devices("step")
