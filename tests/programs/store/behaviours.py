"""What torch's test_store.py asks of a store: of torch's own server and of rankrun's, with the same answers."""

import os
import sys
import threading
from datetime import timedelta

import torch.distributed as dist

MINUTE = timedelta(seconds=60)


def client(port, libuv, **more):
    more = {"wait_for_workers": False, "timeout": MINUTE, **more}
    return dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=libuv, **more)


def fails(action):
    try:
        return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def later(action):
    thread = threading.Timer(0.2, action)
    thread.start()
    return thread


def with_timeout(store, timeout):
    """The time to connect has its own bound: on a busy machine 200 ms may not do."""
    store.set_timeout(timeout)
    return store


def behaviours(connect):
    store, other = connect(), connect()
    yield "numkeys", store.num_keys()
    store.set("key", "value0")
    store.set("key0", "value0")
    store.set("key1", b"\x00\xffvalue1")
    store.set("key0", "")
    yield "get", [store.get(key) for key in ("key", "key0", "key1")]
    yield "add", [store.add("count", delta) for delta in (1, 2, 3, -10)] + [store.get("count")]
    yield "numkeys", store.num_keys()
    yield "check", [store.check(["key"]), store.check(["key", "none"]), store.check([])]
    yield "compare_set", [
        store.compare_set("cas", *pair)
        for pair in (("not there", "x"), ("", "first"), ("wrong", "second"), ("first", "second"), ("", "third"))
    ]
    yield "delete", [store.delete_key("key"), store.delete_key("key"), store.num_keys()]
    store.append("log", "po")
    store.append("log", "tato")
    store.append("count", "0")
    yield "append", [store.get("log"), store.get("count")]
    store.multi_set(["a", "b"], ["1", "22"])
    yield "multi", store.multi_get(["b", "a", "log"])
    yield "timeout", fails(lambda: store.wait(["never"], timedelta(milliseconds=200)))
    yield "timeout of get", fails(lambda: with_timeout(connect(), timedelta(milliseconds=200)).get("never"))
    yield "after a timeout", store.get("log")
    # Each kind of write ends a wait.
    for key, write in {
        "w set": lambda: other.set("w set", "1"),
        "w add": lambda: other.add("w add", 1),
        "w append": lambda: other.append("w append", "1"),
        "w cas": lambda: other.compare_set("w cas", "", "1"),
        "w multi": lambda: other.multi_set(["w multi"], ["1"]),
    }.items():
        thread = later(write)
        yield key, store.wait(["a", key])
        thread.join()
    yield "queue", [store.queue_len("q"), store.check(["q"])]
    for item in ("one", "two", "three"):
        store.queue_push("q", item)
    yield "queue", [other.queue_len("q"), other.check(["q"]), other.queue_pop("q"), store.queue_pop("q")]
    yield "queue", [store.queue_pop("q"), fails(lambda: store.queue_pop("q", block=False)), store.num_keys()]
    thread = later(lambda: other.queue_push("q", "late"))
    yield "queue", store.queue_pop("q")
    thread.join()
    thread = later(lambda: other.barrier("bar", 2, MINUTE))
    yield "barrier", store.barrier("bar", 2, MINUTE)
    thread.join()
    yield "barrier", [store.get("bar"), fails(lambda: store.barrier("lonely", 2, timedelta(milliseconds=200)))]
    prefix = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    prefix.set("key", "prefixed")
    prefix.multi_set(["x", "y"], ["1", "2"])
    yield "prefix", [prefix.get("key"), store.get("inner/outer/key"), prefix.multi_get(["x", "y"]), prefix.add("n", 4)]
    clone = store.clone()
    clone.set("cloned", "yes")
    yield "clone", store.get("cloned")
    for size in (1439, 1440, 70_000, 8 << 20):
        store.set("big", b"\x07" * size)
        # A set has no answer: what follows it on the same connection has one.
        yield "big", [store.check(["big"]), len(other.get("big"))]
    too_big = fails(lambda: (store.set("big", b"x" * ((8 << 20) + 1)), store.get("big")))
    yield "too big", str(too_big).split(":")[0]
    yield "the others", other.get("cloned")
    yield "keys", sorted(other.list_keys())


def main():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True, timeout=MINUTE)
    ours = int(os.environ["MASTER_PORT"])
    wanted = list(behaviours(lambda **more: client(server.port, True, **more)))
    got = list(behaviours(lambda **more: client(ours, True, **more)))
    for one, other in zip(wanted, got, strict=True):
        assert one == other, f"torch: {one}\nrankrun: {other}"
    # The other backend's client has no queues.
    store = client(ours, False)
    store.set("legacy", "x" * 10_000)
    assert store.get("legacy") == b"x" * 10_000 and store.add("legacy count", 2) == 2
    # Clients count themselves in, as the ranks of a job do: under one key.
    before = store.num_keys()
    workers = [client(ours, True, world_size=3, wait_for_workers=True) for _ in range(2)]
    assert workers[0].num_keys() == before + 1


main()
print("done")
sys.exit(0)
