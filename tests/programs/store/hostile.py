"""Garbage, half messages, floods and idle connections do not hurt a client that behaves."""

import os
import resource
import socket
import struct
import sys
import time

from light import ADDRESS, MAGIC, Light, text

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
good = Light()
good.set(b"key", b"value")
# What a client has sent before its end is served, however much it is.
brief, rank = Light(), os.environ["RANK"].encode()
keys = [b"%d of %s" % (number, rank) for number in range(5000)]
# Whose socket it is can be seen as long as it is open: torch's client waits for an answer at first, too.
assert brief.ping()
brief.socket.sendall(b"".join(b"\x01" + text(key) + text(b"value") for key in keys))
brief.socket.close()
assert good.wait(keys[-1])
idle = [socket.create_connection(ADDRESS) for _ in range(500)] + [Light() for _ in range(500)]
half = [Light() for _ in range(100)]
for number, client in enumerate(half):
    client.socket.sendall((b"\x01" + text(b"key") + struct.pack("<Q", 8 << 20) + b"x" * 1000)[: 1 + 10 * number])
for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00\x00\x00\x00\x00", bytes(range(1, 256))):
    assert Light(garbage).is_closed(), garbage
    assert Light(MAGIC + b"\xff" + garbage).is_closed(), garbage
for violation in (b"\x03" + struct.pack("<Q", 1 << 40), b"\x06" + struct.pack("<Q", 1 << 20), MAGIC, b"\x13"):
    assert Light(MAGIC + violation).is_closed(), violation
# It asks for much and reads nothing.
good.set(b"big", b"x" * (8 << 20))
deaf = Light()
deaf.socket.settimeout(1)
try:
    deaf.socket.sendall((b"\x03" + text(b"big")) * 200_000)
except TimeoutError:
    pass
start = time.monotonic()
for turn in range(1000):
    assert good.add(b"count of " + rank, 1) == turn + 1
assert good.get(b"key") == b"value" and good.ping()
print(f"1000 round trips beside {len(idle)} idle clients in {time.monotonic() - start:.3f} s", file=sys.stderr)
print("unharmed")
