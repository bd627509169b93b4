"""A stand-in for the agent's end of the worker socket, and what tests need to run interpreters under it."""

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "python" / "hook" / "sitecustomize.py"
PACKAGE = ROOT / "python"
MAX_LINE = 65536
# Generous: a loaded machine is no failure. Nothing waits this long unless it is broken.
BOUND = 60.0


class Agent:
    """Listens on a worker socket and keeps every message, in the order of arrival."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="rr-python-"))
        self.path = str(self.directory / "socket")
        self.hook = self.directory / "hook"
        self.hook.mkdir()
        for name in (HOOK.name, "jax_cluster.py"):
            shutil.copy(HOOK.with_name(name), self.hook)
        self.messages = []
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open = {}
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._stop_reader:
                    return
                if key.fileobj is self._listener:
                    peer, _ = self._listener.accept()
                    with self._changed:
                        self._open[peer] = b""
                    self._selector.register(peer, selectors.EVENT_READ)
                else:
                    self._read(key.fileobj)

    def _read(self, peer):
        data = peer.recv(1 << 20)
        with self._changed:
            *lines, rest = (self._open.pop(peer) + data).split(b"\n")
            for line in lines:
                if len(line) + 1 > MAX_LINE:
                    self.messages.append({"type": "TOO LONG", "bytes": len(line)})
                else:
                    self.messages.append(json.loads(line.decode("utf-8")))
            if data:
                self._open[peer] = rest
            else:
                self._selector.unregister(peer)
                peer.close()
            self._changed.notify_all()

    def wait_for(self, predicate, what):
        """Waits until the messages so far satisfy the predicate."""
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self.messages), BOUND):
                raise AssertionError("never seen: {}; got {}".format(what, self.messages))

    def wait_for_type(self, kind):
        self.wait_for(lambda messages: any(m["type"] == kind for m in messages), kind)

    def drain(self):
        """All messages of processes that have ended: what they sent before this call is in."""
        mark = "mark {}".format(time.monotonic())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(self.path)
            peer.sendall(json.dumps({"type": mark}).encode() + b"\n")
        self.wait_for(lambda messages: any(m["type"] == mark for m in messages) and not self._open, "the end")
        return [m for m in self.messages if not m["type"].startswith("mark ")]

    def environment(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RANKRUN", "PMI"))}
        env.update(PYTHONPATH=str(self.hook), RANKRUN_SOCKET=self.path, RANKRUN_RANK="3", **more)
        return env

    def close(self):
        self._stop_writer.close()
        self._thread.join(BOUND)
        for peer in list(self._open) + [self._listener, self._stop_reader]:
            peer.close()
        self._selector.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def told(messages):
    """What was told beyond the greetings, short enough to compare."""
    short = []
    for message in messages:
        if message["type"] == "uncaught" and "message" not in message:
            # The whole of it follows.
            continue
        elif message["type"] == "uncaught":
            short.append(("uncaught", message["exception"], message["message"]))
        elif message["type"] == "exiting":
            short.append(("exiting", message["code"]))
        elif message["type"] == "evidence":
            short.append((message["what"], message["exception"], message["message"]))
        elif message["type"] != "hello":
            short.append((message["type"],))
    return short


def interpreters():
    """Every CPython on this machine, one a version: `RANKRUN_TEST_PYTHONS` (a search path of programs) or what is found."""
    given = os.environ.get("RANKRUN_TEST_PYTHONS")
    if given:
        candidates = given.split(os.pathsep)
    else:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [sys.executable, "/usr/bin/python3"] + [str(p) for p in sorted(pyenv.glob("*/bin/python"))]
        candidates += [found for minor in range(6, 16) if (found := shutil.which("python3.{}".format(minor)))]
    versions = {}
    for program in candidates:
        try:
            probe = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
            command = [program, "-S", "-c", probe]
            output = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=BOUND)
        except (OSError, subprocess.SubprocessError):
            continue
        version = tuple(int(part) for part in output.decode().split("."))
        versions.setdefault(version, program)
    return dict(sorted(versions.items()))


def mpi_python(name):
    """The interpreter of an environment that `cargo xtask env` makes, or `None`."""
    directory = os.environ.get("RANKRUN_ENV_DIR")
    base = Path(directory) if directory else Path.home() / ".cache/rankrun/envs"
    program = base / name / "bin" / "python"
    return str(program) if (base / name / "rankrun-pins").exists() and program.exists() else None


def end_group(process):
    """Kills a process that leads its own session, with all that it started there."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(BOUND)
