"""Steps of work and a collective. One rank is slow: slow.py mpi|torch KIND RANK [SECONDS]

The kinds are cpu, memory, io, lock, gc, branch, and none. The slow rank spends its extra time in the function that EXPECTED names.
"""
import gc
import mmap
import os
import sys
import tempfile
import threading
import time

LIBRARY, KIND, SLOW = sys.argv[1], sys.argv[2], int(sys.argv[3])
SECONDS = float(sys.argv[4]) if len(sys.argv) > 4 else 60.0
EXTRA = 0.04


def forward(size):
    total = 0
    for number in range(size):
        total += number * number % 7
    return total


def touch_pages():
    end = time.monotonic() + EXTRA
    while time.monotonic() < end:
        area = mmap.mmap(-1, 16 << 20)
        area.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, 16 << 20, 4096):
            area[page] = 1
        area.close()


def write_checkpoint(file):
    end = time.monotonic() + EXTRA
    while time.monotonic() < end:
        file.seek(0)
        file.write(b"x" * (1 << 20))
        os.fsync(file.fileno())


def wait_for_lock(lock):
    with lock:
        pass


def hold(lock):
    while True:
        with lock:
            time.sleep(EXTRA)
        time.sleep(0.0005)


def collect(kept):
    end = time.monotonic() + EXTRA
    while time.monotonic() < end:
        gc.collect()


def fast_path(size):
    return forward(size)


def careful_path(size):
    end = time.monotonic() + EXTRA
    total = 0
    while time.monotonic() < end:
        total += sum(number % 3 for number in range(1000))
    return total


def step(rank, state):
    slow = rank == SLOW
    if KIND == "branch":
        careful_path(9000) if slow else fast_path(9000)
        return
    forward(500000 if slow and KIND == "cpu" else 40000)
    if not slow:
        return
    if KIND == "memory":
        touch_pages()
    elif KIND == "io":
        write_checkpoint(state)
    elif KIND == "lock":
        wait_for_lock(state)
    elif KIND == "gc":
        collect(state)


def prepare(rank):
    if rank != SLOW:
        return None
    if KIND == "io":
        return tempfile.NamedTemporaryFile(dir=os.environ.get("RANKRUN_TEST_DIR"), buffering=0)
    if KIND == "lock":
        lock = threading.Lock()
        threading.Thread(target=hold, args=(lock,), daemon=True).start()
        return lock
    if KIND == "gc":
        return [[index] for index in range(300000)]
    return None


def collective():
    if LIBRARY == "mpi":
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        return world.rank, lambda: world.allreduce(1)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = torch.ones(1000)
    return dist.get_rank(), lambda: dist.all_reduce(value)


def main():
    rank, reduce = collective()
    state = prepare(rank)
    reduce()
    print(f"rank {rank} steps", flush=True)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for _ in range(10):
            step(rank, state)
            reduce()


main()
