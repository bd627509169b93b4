"""`launch` on several machines: `nodes.py PACKAGE HOSTS`."""

import os
import socket
import sys

sys.path.insert(0, sys.argv[1])
import rankrun  # noqa: E402


def place(size):
    return int(os.environ["RANK"]), socket.gethostname(), "x" * size


def fails(rank):
    if int(os.environ["RANK"]) == rank:
        raise ValueError(f"failure of {rank}")
    import time

    time.sleep(60)


if __name__ == "__main__":
    # Longer than a line of the worker socket, and than what is read of a rank that has ended.
    places = rankrun.launch(place, 1_000_000, 4, hosts=sys.argv[2])
    print([(rank, host, len(text)) for rank, host, text in places])
    print(rankrun.launch(len, "four", 2, hosts=sys.argv[2].split(",")))
    try:
        rankrun.launch(fails, 2, 4, hosts=sys.argv[2])
    except rankrun.WorkerError as error:
        print(error.worker_id, repr(error.exception), "in fails" in str(error.__cause__))
