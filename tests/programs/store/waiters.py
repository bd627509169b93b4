"""Many clients wait for one key."""

import resource
import sys
import time

from light import Light

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
count = int(sys.argv[1])
start = time.monotonic()
waiters = [Light() for _ in range(count)]
for waiter in waiters:
    assert waiter.ping()
connected = time.monotonic()
for waiter in waiters:
    waiter.begin_wait(b"go")
setter = Light()
assert setter.ping()
begun = time.monotonic()
setter.set(b"go", b"")
assert setter.ping()
woken = time.monotonic()
for waiter in waiters:
    assert waiter.read(1) == b"\0"
end = time.monotonic()
print(
    f"connected {connected - start:.3f} s, set answered after {woken - begun:.3f} s, all read after {end - begun:.3f} s",
    file=sys.stderr,
)
print("woken", count)
