"""Clients of torch's store: seconds that they take together, against the store at MASTER_PORT or torch's own (`own`).
With `floor` (and `light` alone), against a server that only answers.

store.py own|ranks trips CLIENTS TRIPS    set + get, each client on a key of its own
store.py floor|own|ranks light CLIENTS TRIPS|wake BINARY  clients of bench/store.c
store.py own|ranks connect CLIENTS        clients without torch connect, and are answered
"""

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from datetime import timedelta

MAGIC = struct.pack("<BI", 0, 0x3C85F7CE)
MINUTE = timedelta(seconds=60)


def own_store(dist):
    """The port of torch's own store, in a process of its own, as torchrun's agent is; and its pid."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=MINUTE)
        os.write(writer, b"%d\n" % store.port)
        while True:
            signal.pause()
    return int(os.read(reader, 20)), pid


def light(port):
    """A client without torch, that has been answered."""
    client = socket.create_connection(("127.0.0.1", port))
    # In one piece: torch's server closes a connection whose first bytes come in two.
    client.sendall(MAGIC + b"\x0dping")
    assert client.recv(4, socket.MSG_WAITALL) == b"ping"
    return client


def together(count, prepare, act):
    """Forks clients, and starts them when all are ready: the seconds until all have done it."""
    ready, be_ready = os.pipe()
    go, say_go = os.pipe()
    pids = []
    for index in range(count):
        pid = os.fork()
        if pid == 0:
            client = prepare()
            os.close(say_go)
            os.write(be_ready, b"r")
            os.read(go, 1)
            act(client, index)
            os._exit(0)
        pids.append(pid)
    have = 0
    while have < count:
        have += len(os.read(ready, count))
    os.close(go)
    begin = time.monotonic()
    os.close(say_go)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        sys.exit("a client failed")
    return time.monotonic() - begin


def main():
    whose, what, count, *rest = sys.argv[1:]
    count = int(count)
    if whose == "floor":
        server = subprocess.Popen([rest[-1], "serve"], stdout=subprocess.PIPE)
        port, pid = int(server.stdout.readline()), server.pid
    elif whose == "own" or what != "light":
        import torch.distributed as dist

    if whose == "own":
        port, pid = own_store(dist)
    elif whose == "ranks":
        port, pid = int(os.environ["MASTER_PORT"]), None
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    def connect():
        return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=MINUTE)

    if what == "trips":

        def trips(store, index):
            key = f"key{index}"
            for turn in range(int(rest[0])):
                store.set(key, "x" * 64)
                store.get(key)

        seconds = together(count, connect, trips)
    elif what == "light":
        trips, binary = rest
        seconds = float(subprocess.run([binary, str(port), str(count), trips], stdout=subprocess.PIPE, check=True).stdout)
    else:
        begin = time.monotonic()
        # torch's own client looks its peer's name up, which is not the server's doing.
        clients = [light(port) for _ in range(count)]
        seconds = time.monotonic() - begin
    print(seconds)
    sys.stdout.flush()
    if pid:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


main()
