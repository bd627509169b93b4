"""Clients on several nodes: all of them wait for one key; or none of another user is served.

relayed.py wait CLIENTS      so many on each node; with the descriptors of the agent that has the store, and the seconds until all are awake
relayed.py strangers TRIES   so many connections of another user, to the store of their own node and to that of the first rank
relayed.py trips TRIPS       set + get of a value, one client on each node; the seconds of the slowest

Without the agent's store the first rank starts torch's own, in a process of its own.
"""

import os
import resource
import socket
import sys
import time

from light import ADDRESS, MAGIC, Light

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def meet(store, name, seconds=60):
    """Until all ranks are here."""
    store.add(b"at " + name, 1)
    end = time.monotonic() + seconds
    while store.add(b"at " + name, 0) < SIZE:
        assert time.monotonic() < end, f"others did not come to {name}"
        time.sleep(0.005)


def own_store():
    """Torch's own server, until we end."""
    import torch.distributed as dist

    ready, say_ready = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        server = dist.TCPStore(*ADDRESS, is_master=True, wait_for_workers=False)
        os.write(say_ready, b"%d" % server.port)
        while os.getppid() == parent:
            time.sleep(0.05)
        os._exit(0)
    os.read(ready, 10)


def first():
    """The first client; it waits for a store that a rank starts."""
    end = time.monotonic() + 60
    while True:
        try:
            return Light()
        except ConnectionRefusedError:
            assert time.monotonic() < end, "there is no store"
            time.sleep(0.05)


def wait(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    store = first()
    waiters = [Light() for _ in range(count)]
    for waiter in waiters:
        waiter.begin_wait(b"go")
        # Answered when it is waited for.
        waiter.socket.sendall(b"\x0dping")
    for waiter in waiters:
        assert waiter.read(4) == b"ping"
    meet(store, b"waits")
    if RANK == 0:
        store.set(b"descriptors", b"%d" % len(os.listdir(f"/proc/{os.getppid()}/fd")))
        # All nodes of the test have one clock.
        store.set(b"begin", b"%r" % time.monotonic())
        store.set(b"go", b"")
    for waiter in waiters:
        assert waiter.read(1) == b"\0"
    store.set(b"end %d" % RANK, b"%r" % time.monotonic())
    meet(store, b"woken")
    if RANK == 0:
        ends = [float(store.get(b"end %d" % rank)) for rank in range(SIZE)]
        took = max(ends) - float(store.get(b"begin"))
        own = count + 1
        others = int(store.get(b"descriptors")) - own
        print(f"all awake after {took:.6f} s", file=sys.stderr)
        print(f"{SIZE * count} woken, {'few' if others < SIZE + 100 else others} descriptors besides its own clients'")
    meet(store, b"told")


def strangers(tries):
    store = Light()
    first = os.environ["RANKRUN_JAX_COORDINATOR"].rsplit(":", 1)[0].strip("[]")
    if RANK == 0:
        store.set(b"port", os.environ["MASTER_PORT"].encode())
    meet(store, b"port")
    places = [(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), (first, int(store.get(b"port")))]
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        served = 0
        for number in range(tries):
            try:
                client = socket.create_connection(places[number % 2], timeout=10)
                client.sendall(MAGIC + b"\x0dping")
                served += client.recv(4) == b"ping"
                client.close()
            except ConnectionError:
                pass
        os._exit(served > 0)
    served = os.waitpid(child, 0)[1]
    assert store.ping()
    meet(store, b"end")
    print("turned away" if served == 0 else "served")


def trips(count):
    store, key = first(), b"key %d" % RANK
    meet(store, b"trips")
    begin = time.monotonic()
    for number in range(count):
        store.set(key, b"value %d" % number)
        assert store.get(key) == b"value %d" % number
    took = time.monotonic() - begin
    store.set(b"took %d" % RANK, b"%r" % took)
    meet(store, b"ends")
    if RANK == 0:
        print(max(float(store.get(b"took %d" % rank)) for rank in range(SIZE)))
    meet(store, b"told")


if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False" and RANK == 0:
    own_store()
{"wait": wait, "strangers": strangers, "trips": trips}[sys.argv[1]](int(sys.argv[2]))
