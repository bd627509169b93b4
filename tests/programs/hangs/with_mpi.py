"""A job of mpi4py that hangs in a certain way. One rank, in the middle, is the odd one, unless it says otherwise."""

import atexit
import fcntl
import gc
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time

kind = sys.argv[1]
world = None


def never_enters():
    prepare()


def prepare():
    while True:
        time.sleep(60)


def receives():
    world.recv(source=0, tag=77)


def sends():
    world.Ssend(bytearray(1 << 20), dest=0, tag=78)


def takes_a_lock_twice():
    lock = threading.Lock()
    with lock:
        update(lock)


def update(lock):
    with lock:
        pass


def waits_for_a_dead_worker():
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=time.sleep, args=(600,))
    worker.start()
    os.kill(worker.pid, signal.SIGKILL)
    # The other end is open here too, so that nobody hears of the worker's end.
    next_batch(ours)


def next_batch(pipe):
    pipe.recv()


def runs_a_command():
    subprocess.run(["sleep", "600"])


def asks():
    input()


def waits_for_a_dead_thread():
    results = queue.Queue()
    threading.excepthook = lambda args: None
    thread = threading.Thread(target=lambda: results.put(1 / 0))
    thread.start()
    thread.join()
    collect(results)


def collect(results):
    results.get()


def joins_a_thread():
    thread = threading.Thread(target=prepare, daemon=True)
    thread.start()
    thread.join()


def loops():
    number = 0
    while True:
        number += 1


class Finalizer:
    def __init__(self):
        self.self = self

    def __del__(self):
        release()


def release():
    while True:
        time.sleep(60)


def collects_garbage():
    Finalizer()
    gc.collect()


def is_in_a_handler():
    signal.signal(signal.SIGUSR1, lambda number, frame: save())
    os.kill(os.getpid(), signal.SIGUSR1)


def save():
    while True:
        time.sleep(60)


def waits_for_a_file_lock():
    path = sys.argv[2]
    holder = open(path, "w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    waiter = open(path, "w")
    fcntl.flock(waiter, fcntl.LOCK_EX)


def waits_in_an_exit_handler():
    atexit.register(prepare)
    sys.exit(0)


def is_done():
    sys.exit(0)


def main():
    global world
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Barrier()
    odd = 0 if kind == "asks" else world.size // 2
    if kind == "alike":
        world.recv(source=(world.rank + 1) % world.size)
    if kind == "opposite_order":
        # The lower half is in one collective, the upper half in another.
        world.Barrier() if world.rank < odd else world.allgather(1)
    if kind == "raises" and world.rank == odd:
        raise ValueError("boom")
    if world.rank == odd:
        globals()[kind]()
    step()


def step():
    world.allreduce(1)


main()
