"""TCP ports that stay free until the job has them."""

import socket
from typing import Any, Callable, Optional, Tuple


class Port(int):
    """A TCP port number that nobody else is given as long as this object lives.

    It is bound with `SO_REUSEADDR` and does not listen: a program of the job may listen on it with `SO_REUSEADDR`, as
    torch, gloo and most servers do, and the kernel hands it to no stranger that asks for any free port. Arithmetic,
    `int()` and `str()` give plain numbers and strings, which hold nothing.
    """

    _socket: Optional[socket.socket]

    def __new__(cls, number: int, held_by: Optional[socket.socket] = None) -> "Port":
        port = super().__new__(cls, number)
        port._socket = held_by
        return port

    def close(self) -> None:
        """Gives the port up. That may be done twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> "Port":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[int]]:
        # A copy in another process cannot hold it.
        return int, (int(self),)


def free_port() -> Port:
    """A TCP port that is free on all addresses of this machine, and is kept until the returned number is dropped.

    Give it to `launch` as `master_port`, or listen on it with `SO_REUSEADDR`.

    Raises:
        OSError: no port is free.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        return Port(holder.getsockname()[1], holder)
    except BaseException:
        holder.close()
        raise
