"""Requests as large as they may be, from several processes: the store's memory stays near what they have brought, and others are
served meanwhile."""

import os
import signal
import struct
import sys
import time
import traceback

from light import Light, text

KEYS = 128 << 10
MIB = 1 << 20


def resident(pid):
    """MiB of memory."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def list_of(keys):
    return struct.pack("<Q", len(keys)) + b"".join(map(text, keys))


def read_all(client, size):
    room = bytearray(MIB)
    while size > 0:
        got = client.socket.recv_into(room)
        assert got, "the store has closed the connection"
        size -= got


def gets():
    """Half a gigabyte of answers, for a megabyte of a request."""
    client = Light()
    client.socket.sendall(b"\x0a" + list_of([b"value"] * KEYS))
    read_all(client, KEYS * (8 + 4096))


def waits(number):
    """Many keys that never come; the wait is given up, too."""
    client = Light()
    request = b"\x06" + list_of([struct.pack("<II", number, key) for key in range(KEYS)])
    client.socket.sendall(request + b"\x0c")
    assert client.read(1) == b"\1"
    client.socket.sendall(request)
    # Answered when it is waited for.
    client.socket.sendall(b"\x0dping")
    assert client.read(4) == b"ping"
    return client


def lists():
    """Lists of all keys, which it asks for again and again."""
    client = Light()
    for _ in range(5):
        client.send(17)
        count = client.number()
        assert count == KEYS + 1, count
        read_all(client, KEYS * 16 + 8 + len(b"value"))


def deaf():
    """It asks for all keys, and reads nothing."""
    client = Light()
    client.socket.settimeout(0.2)
    try:
        client.socket.sendall(b"\x11" * MIB)
    except TimeoutError:
        pass
    return client


def small():
    """Very many requests of a byte."""
    client = Light()
    count = MIB // 4
    if os.fork() == 0:
        client.socket.sendall(b"\x07" * count)
        os._exit(0)
    read_all(client, 8 * count)
    os.wait()


def child(act, *arguments):
    """Runs it in a process, which writes a byte when it is done, and stays with its connection."""
    done, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(done)
            client = act(*arguments)
            os.write(tell, b"d")
            while client:
                signal.pause()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(tell)
    os.set_blocking(done, False)
    return pid, done


class Pings:
    def __init__(self):
        self.client = Light()
        self.took = []

    def ping(self):
        begin = time.monotonic()
        assert self.client.ping()
        self.took.append(time.monotonic() - begin)
        time.sleep(0.001)

    def __str__(self):
        took = sorted(self.took)
        half, most = took[len(took) // 2], took[len(took) * 99 // 100]
        return f"{len(took)} pings, half in {half * 1000:.1f} ms, 99 of 100 in {most * 1000:.1f} ms, the longest {took[-1] * 1000:.1f} ms"


def run(name, agent, bound, children):
    """Pings while these run. Returns their processes that are still there."""
    before, most, pings = resident(agent), 0, Pings()
    left = dict(children)
    while left:
        pings.ping()
        most = max(most, resident(agent) - before)
        for pid, done in list(left.items()):
            try:
                assert os.read(done, 1) == b"d", f"{name}: a client has failed"
                os.close(left.pop(pid))
            except BlockingIOError:
                pass
    print(f"{name}: {most:.1f} MiB more; {pings}", file=sys.stderr)
    assert most < bound, f"{name}: {most:.1f} MiB more"
    # Of seconds that a whole request takes, nobody waits for more than a part; the machine may be busy with other things.
    took = sorted(pings.took)
    assert took[len(took) // 2] < 0.1, f"{name}: {pings}"


agent = os.getppid()
good = Light()
good.set(b"value", b"x" * 4096)
run("values", agent, 16, [child(gets) for _ in range(2)])
waiting = [child(waits, number) for number in range(4)]
# 12 MiB of keys are awaited, which take some more in an index.
run("waits", agent, 120, waiting)
# All of them end at once.
for pid, _ in waiting:
    os.kill(pid, signal.SIGKILL)
pings = Pings()
for _ in range(200):
    pings.ping()
print(f"ends: {pings}", file=sys.stderr)
keys = [struct.pack("<Q", key) for key in range(KEYS)]
good.socket.sendall(b"\x0b" + struct.pack("<Q", KEYS) + b"".join(text(key) + text(b"") for key in keys))
assert good.num_keys() == KEYS + 1
silent = [child(deaf) for _ in range(20)]
run("lists", agent, 40, [child(lists)] + silent)
run("small requests", agent, 16, [child(small) for _ in range(2)])
for pid, _ in silent:
    os.kill(pid, signal.SIGKILL)
print("bounded")
