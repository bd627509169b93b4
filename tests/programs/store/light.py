"""A client of torch's store without torch: the protocol byte by byte."""

import os
import socket
import struct

ADDRESS = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
MAGIC = bytes([0]) + struct.pack("<I", 0x3C85F7CE)


def text(value):
    return struct.pack("<Q", len(value)) + value


class Light:
    def __init__(self, hello=MAGIC):
        self.socket = socket.create_connection(ADDRESS, timeout=30)
        # As torch's client: a request does not wait until the one before is acknowledged.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(hello)

    def send(self, operation, *fields):
        self.socket.sendall(bytes([operation]) + b"".join(fields))

    def read(self, count):
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    def number(self):
        return struct.unpack("<q", self.read(8))[0]

    def ping(self):
        self.send(13, b"ping")
        return self.read(4) == b"ping"

    def set(self, key, value):
        self.send(1, text(key), text(value))

    def get(self, key):
        self.send(3, text(key))
        return self.read(self.number())

    def add(self, key, delta):
        self.send(4, text(key), struct.pack("<q", delta))
        return self.number()

    def begin_wait(self, *keys):
        self.send(6, struct.pack("<Q", len(keys)), *map(text, keys))

    def wait(self, *keys):
        self.begin_wait(*keys)
        return self.read(1) == b"\0"

    def num_keys(self):
        self.send(7)
        return self.number()

    def is_closed(self):
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
