"""The connection to the agent (docs/worker-socket.md)."""

import json
import os
import socket
import sys
import threading
import time
from typing import Any, Dict, Optional, Tuple

MAX_LINE = 65536
# How long `abort` tries to be heard by an agent that does not read: it is stopped then, and the job ends all the same.
PATIENCE = 0.25


class _Connection:
    """One connection of one process, opened when there is something to say."""

    def __init__(self) -> None:
        self.socket: Optional[socket.socket] = None
        self.identity: Tuple[int, int] = (0, 0)
        # A line of which the agent has got only a part; the rest must come before anything else.
        self.pending = b""

    def open(self, path: str) -> socket.socket:
        if self.socket is not None and self.is_ours(self.socket):
            return self.socket
        self.socket, self.pending = None, b""
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(PATIENCE)
            peer.connect(path)
        except BaseException:
            peer.close()
            raise
        status = os.fstat(peer.fileno())
        self.socket, self.identity = peer, (status.st_dev, status.st_ino)
        self.pending = _line(
            {
                "type": "hello",
                "pid": os.getpid(),
                "rank": int(os.environ["RANKRUN_RANK"]) if "RANKRUN_RANK" in os.environ else None,
                "kind": "python",
                "version": "%d.%d.%d" % sys.version_info[:3],
                "argv0": sys.argv[0] if sys.argv else "",
                "tag": os.environ.get("RANKRUN_WORKER", ""),
            }
        )
        return peer

    def is_ours(self, peer: socket.socket) -> bool:
        """Whether our descriptor has not been closed behind our back, and perhaps been opened as something else."""
        try:
            status = os.fstat(peer.fileno())
        except OSError:
            peer.detach()
            return False
        if (status.st_dev, status.st_ino) != self.identity:
            peer.detach()
            return False
        return True

    def say(self, path: str, line: bytes, wait: bool) -> bool:
        peer = self.open(path)
        try:
            peer.settimeout(PATIENCE if wait else 0)
            # The greeting and what was begun earlier go first; a new line is taken on only when they are out.
            while self.pending:
                self.pending = self.pending[peer.send(self.pending) :]
            self.pending = line
            while self.pending:
                self.pending = self.pending[peer.send(self.pending) :]
            return True
        except (BlockingIOError, socket.timeout):
            if self.pending == line:
                # Nothing of it has been sent, so that it can be dropped.
                self.pending = b""
            return False
        except OSError:
            peer.close()
            self.socket = None
            raise


_lock = threading.Lock()
_connection: Optional[_Connection] = None


def _in_forked_child() -> None:
    # The lock may have been held by a thread that is not here, and the connection is the parent's.
    global _lock, _connection
    _lock = threading.Lock()
    if _connection is not None and _connection.socket is not None:
        _connection.socket.close()
    _connection = None


os.register_at_fork(after_in_child=_in_forked_child)


def say(message: Dict[str, Any], wait: bool) -> bool:
    """Sends a message, and returns whether it is on its way. It waits at most `PATIENCE` seconds, or not at all."""
    path = os.environ.get("RANKRUN_SOCKET")
    if not path:
        return False
    message["time"] = time.monotonic()
    global _connection
    # The caller may be a signal handler that has interrupted this very function: it must not wait for ever.
    if not _lock.acquire(timeout=PATIENCE if wait else 0):
        return False
    try:
        if _connection is None:
            _connection = _Connection()
        return _connection.say(path, _line(message), wait)
    except (OSError, ValueError):
        return False
    finally:
        _lock.release()


def _line(message: Dict[str, Any]) -> bytes:
    """A line of the protocol. A text that does not fit loses its middle."""
    limit = MAX_LINE
    while True:
        fields = {"v": 1, **{k: _cut(v, limit) if isinstance(v, str) else v for k, v in message.items()}}
        line = json.dumps(fields, ensure_ascii=True).encode("ascii") + b"\n"
        if len(line) <= MAX_LINE:
            return line
        limit //= 2


def _cut(text: str, limit: int) -> str:
    # Half a surrogate pair is no character, and JSON parsers refuse it.
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut by rankrun ...]\n{text[-half:]}"
