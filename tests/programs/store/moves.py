"""Three attempts, of which each finds the store empty. The first fails, the second waits for the loss of a node."""

import os
import signal
import sys
import time

from light import Light

RANK, SIZE, ATTEMPT = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "RANKRUN_ATTEMPT"))


def awaits(store, key):
    store.begin_wait(key)
    assert store.read(1) == b"\0"


store = Light()
for before in range(ATTEMPT):
    store.send(5, (1).to_bytes(8, "little"), len(b"left %d" % before).to_bytes(8, "little"), b"left %d" % before)
    assert store.read(1) == b"\1", "left by an attempt before"
for rank in range(SIZE):
    store.set(b"%d here" % RANK, b"x" * 100_000)
    awaits(store, b"%d here" % rank)
store.set(b"left %d" % ATTEMPT, b"")
# Connections that wait, and a request that is not finished.
left = [Light() for _ in range(100)]
for client in left:
    client.begin_wait(b"never")
    client.socket.sendall(b"\x01")
open(f"{os.environ['RANKRUN_TEST_DIR']}/up-{ATTEMPT}-{RANK}", "w").close()
if ATTEMPT == 0:
    for rank in range(SIZE):
        store.set(b"%d up" % RANK, b"")
        awaits(store, b"%d up" % rank)
    if RANK == 1:
        sys.exit(3)
if ATTEMPT < 2:
    signal.pause()
print("alone in", SIZE)
