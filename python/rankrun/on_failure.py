"""`launch(on_failure=...)`: a function of the program that decides what follows a failure.

rankrun asks a command (`--on-failure`). Here that command is this file, which passes the report on to the program that has
called `launch`, by a socket in a directory of its own, and prints the program's answer.
"""

import json
import os
import shlex
import socket
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

OnFailure = Callable[[Dict[str, Any]], Optional[str]]


class Listener:
    """Answers rankrun's questions with a function, in a thread, until it is closed."""

    def __init__(self, function: OnFailure, directory: str) -> None:
        self._function = function
        self._path = os.path.join(directory, "on-failure")
        self._socket = socket.socket(socket.AF_UNIX)
        # The name of a socket has 107 bytes at most, and that of a temporary directory may be longer.
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self._socket.bind(f"/proc/self/fd/{folder}/on-failure")
        finally:
            os.close(folder)
        self._socket.listen(1)
        self._thread = threading.Thread(target=self._serve, name="rankrun-on-failure", daemon=True)

    def options(self, interpreter: List[str]) -> List[str]:
        """The options of rankrun that make it ask."""
        return ["--on-failure", shlex.join([*interpreter, os.path.abspath(__file__), self._path])]

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        # It ends the wait of the thread, where closing alone does not.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                try:
                    peer.sendall(self._answer(_read(peer)).encode(errors="backslashreplace"))
                except OSError:
                    # rankrun waits no longer.
                    pass

    def _answer(self, report: bytes) -> str:
        try:
            answer = self._function(json.loads(report))
        # sys.exit() in the function must not end this thread, which others wait for.
        except BaseException as error:
            traceback.print_exc()
            return self._no_answer(f"raised {type(error).__name__}")
        if answer is None:
            return ""
        words = answer.split() if isinstance(answer, str) else [""]
        # rankrun itself reads the time.
        if words in ([], ["restart"], ["stop"]) or (len(words) == 2 and words[0] == "wait"):
            return answer
        return self._no_answer(f"returned {answer!r}, which is not 'restart', 'stop', 'wait DURATION' or None")

    def _no_answer(self, why: str) -> str:
        """Says which function has not answered, and why: the other options decide."""
        name = getattr(self._function, "__qualname__", repr(self._function))
        print(f"rankrun: on_failure: {name} {why}: the other options decide", file=sys.stderr, flush=True)
        return ""


def _read(peer: socket.socket) -> bytes:
    pieces = []
    while True:
        piece = peer.recv(1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _ask(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        # This process does nothing else, and the whole path may be too long for a socket.
        os.chdir(os.path.dirname(path))
        peer.connect(os.path.basename(path))
        peer.sendall(sys.stdin.buffer.read())
        peer.shutdown(socket.SHUT_WR)
        sys.stdout.write(_read(peer).decode())


if __name__ == "__main__":
    _ask(sys.argv[1])
