"""Programs that must behave alike whether their ranks were started one by one or forked from one interpreter: `cases.py CASE`."""

import os
import sys

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def say(*words):
    # One write a line.
    sys.stdout.write(" ".join(map(str, ("[%d]" % RANK,) + words)) + "\n")
    sys.stdout.flush()


def state():
    """All that a process can see of itself and that its start decides."""
    import ctypes
    import fcntl
    import resource
    import signal
    import threading

    libc = ctypes.CDLL(None)
    death = ctypes.c_int(0)
    libc.prctl(2, ctypes.byref(death), 0, 0, 0)
    say("argv", sys.argv, "orig", sys.orig_argv[1:], "path0", sys.path[0], "path", sys.path)
    main = sys.modules["__main__"]
    say("main", __name__, main.__spec__, main.__file__, main.__dict__.get("__cached__"), type(main.__loader__).__name__)
    say("flags", sys.flags, "warnings", sys.warnoptions, sys._xoptions)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        raw = getattr(stream.buffer, "raw", stream.buffer)
        say(name, stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
        say(name, stream.isatty(), stream.seekable(), type(stream.buffer).__name__, raw.name, raw.mode, raw.closefd)
        say(name, stream is getattr(sys, "__%s__" % name), stream.newlines, oct(os.fstat(stream.fileno()).st_mode))
    say("signals", [(n, str(signal.getsignal(n))) for n in range(1, 65) if signal.getsignal(n) not in (0, None)])
    say("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, []), "death", death.value, "dumpable", libc.prctl(3, 0, 0, 0, 0))
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    say("limits", [(name, resource.getrlimit(getattr(resource, name))) for name in limits])
    say("group", os.getpgrp() == os.getpid(), "session", os.getsid(0) == os.getppid(), "nice", os.nice(0))
    say("affinity", os.sched_getaffinity(0), "umask", os.umask(0o22), "cwd", os.getcwd(), "uid", os.getuid())
    say("threads", threading.active_count(), threading.current_thread().name, threading.main_thread().native_id == os.getpid())
    say("tasks", len(os.listdir("/proc/self/task")), "comm", open("/proc/self/comm").read().strip())
    say("cmdline", open("/proc/self/cmdline").read().split("\0")[1:])
    opened = {}
    for number in os.listdir("/proc/self/fd"):
        if int(number) > 2:
            try:
                opened[int(number)] = (os.readlink("/proc/self/fd/" + number).split("[")[0], fcntl.fcntl(int(number), fcntl.F_GETFD))
            except OSError:
                pass
    say("fds", sorted(opened.items()))
    say("hooks", sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.breakpointhook)
    say("recursion", sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
    varies = ("TRACEPARENT", "PORT", "JOB_ID", "RUN_ID", "SOCKET", "ERROR_FILE", "RANKRUN_WORKER", "PMI_FD", "RANKRUN_JAX", "TF_CONFIG", "PMIX")
    env = sorted((name, value) for name, value in os.environ.items() if not any(part in name for part in varies))
    for pair in env:
        if "/rankrun-" not in pair[1] and "/rr-test-" not in pair[1]:
            say("env", pair)
    inner = os.popen("env").read().split("\n")
    say("env of a child", sorted(set(line.partition("=")[0] for line in inner)))
    say("server", "RANKRUN_FORK_SERVER" in os.environ, "sitecustomize" in sys.modules)
    with open("/proc/self/environ", "rb") as file:
        own = [entry.partition(b"=")[2] for entry in file.read().split(b"\0") if entry.startswith(b"RANKRUN_WORKER=")]
    say("tag", own == [os.environb[b"RANKRUN_WORKER"]])


def everyone(name, value):
    """What all ranks say of something, in the directory of the job."""
    import time

    directory = os.environ["WARM_SHARED"]
    path = os.path.join(directory, "%s.%s." % (name, os.environ["RANKRUN_JOB_ID"]))
    with open(path + "new%d" % RANK, "w") as file:
        file.write(repr(value))
    os.rename(path + "new%d" % RANK, path + str(RANK))
    said = []
    for rank in range(WORLD):
        while not os.path.exists(path + str(rank)):
            time.sleep(0.01)
        with open(path + str(rank)) as file:
            said.append(file.read())
    return said


def random_numbers():
    """Each rank has numbers of its own, but those that a library fixes."""
    import multiprocessing
    import random
    import secrets
    import tempfile
    import uuid

    import numpy
    import torch

    def differ(name, value):
        say(name, "differ" if len(set(everyone(name, value))) == WORLD else "are the same")

    differ("random", random.random())
    differ("numpy", numpy.random.rand())
    differ("generator", numpy.random.default_rng().random())
    differ("torch", torch.rand(1).item())
    differ("torch seed", torch.initial_seed())
    differ("secrets", secrets.token_hex())
    differ("uuid1", uuid.uuid1().hex)
    differ("uuid4", uuid.uuid4().hex)
    differ("authkey", bytes(multiprocessing.current_process().authkey))
    with tempfile.NamedTemporaryFile() as file:
        differ("tempfile", file.name)


def square(number):
    return number * number, os.getppid() != 1


class Thing(object):
    def __init__(self, value):
        self.value = value

    def __call__(self, number):
        return self.value + number


def pool(method):
    import multiprocessing

    context = multiprocessing.get_context(method)
    with context.Pool(2) as workers:
        say(method, workers.map(square, range(8)), workers.map(Thing(3), range(4)))
    process = context.Process(target=say, args=("child",))
    process.start()
    process.join()
    say("exit", process.exitcode, multiprocessing.get_start_method(), multiprocessing.current_process().name)


def model():
    import torch

    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def ddp():
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    net, optimizer = model()
    net = DistributedDataParallel(net)
    generator = torch.Generator().manual_seed(100 + RANK)
    for step in range(20):
        x = torch.randn(32, 16, generator=generator)
        loss = ((net(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    say("loss", loss.item().hex(), "weights", sum(p.double().sum().item() for p in net.parameters()).hex())
    everyone("done", RANK)
    # torch 2.15 sometimes aborts at its end, with or without rankrun: a thread of its own is still there.
    os._exit(0)


class Numbers(object):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        import torch

        return torch.tensor([float(index)])


def loader():
    import torch
    from torch.utils.data import DataLoader

    for method in (None, "spawn"):
        data = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method)
        say("loader", method, [batch.sum().item() for batch in data])


def asynchronous():
    import asyncio

    async def main():
        process = await asyncio.create_subprocess_exec("echo", "of a child", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        values = await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(4)))
        await asyncio.to_thread(lambda: None)
        return out, values

    say("asyncio", asyncio.run(main()))


def threads():
    import threading
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as executor:
        say("threads", list(executor.map(lambda n: n * n, range(8))))
    thread = threading.Thread(target=lambda: 1 / 0, name="loser")
    if RANK == 1:
        thread.start()
        thread.join()
    say("went on")


def blas():
    import numpy

    a = numpy.arange(250000.0).reshape(500, 500) / 1e5
    say("blas", (a @ a @ a).sum().hex(), numpy.linalg.norm(numpy.linalg.inv(a + numpy.eye(500))).round(6))
    child = os.fork()
    if child == 0:
        (a @ a).sum()
        os._exit(0)
    say("child", os.waitpid(child, 0)[1])


def hello():
    say("hello")
    # All have said it before one of them fails.
    everyone("hello", RANK)


def uncaught():
    hello()
    if RANK == 1:
        raise ValueError("failure of rank 1")
    import time

    time.sleep(60)


def chained():
    if RANK == 0:
        try:
            {}["a key"]
        except KeyError as error:
            raise RuntimeError("no key") from error
    import time

    time.sleep(60)


def leave(code):
    import atexit

    atexit.register(say, "first registered, last called")
    atexit.register(say, "last registered, first called")
    if RANK == 1:
        # The other is gone.
        while os.path.exists("/proc/%s" % everyone("left", os.getpid())[0]):
            import time

            time.sleep(0.01)
        sys.exit(code)
    everyone("left", os.getpid())


def unflushed():
    sys.stdout.write("[%d] without a newline" % RANK)
    with open(os.path.join(os.environ["WARM_SHARED"], "flushed.%d" % RANK), "w") as file:
        file.write("x")
    globals()["kept"] = open(os.devnull, "w")


def crash(signal):
    hello()
    if RANK == 1:
        os.kill(os.getpid(), signal)
    import time

    time.sleep(60)


def segfault():
    hello()
    import ctypes

    if RANK == 1:
        ctypes.string_at(0)
    import time

    time.sleep(60)


def interrupt():
    import signal

    hello()
    if RANK == 1:
        signal.raise_signal(signal.SIGINT)
    import time

    time.sleep(60)


def hard_exit():
    hello()
    while RANK == 1 and os.path.exists("/proc/%s" % everyone("left", os.getpid())[0]):
        pass
    everyone("left", os.getpid())
    os._exit(4 if RANK == 1 else 0)


def saves():
    """A rank that saves when it is told to end."""
    import signal
    import time

    def save(number, frame):
        say("saved at", number)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    everyone("ready", 1)
    if RANK == 1:
        raise RuntimeError("rank 1 fails")
    time.sleep(60)


def leftover():
    """A process that outlives its rank."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(3):
                os.close(number)
            import time

            time.sleep(60)
        os._exit(0)
    hello()


def hook_of_its_own():
    def excepthook(kind, error, traceback):
        say("hook", kind.__name__, error)
        sys.__excepthook__(kind, error, traceback)

    sys.excepthook = excepthook
    hello()
    if RANK == 1:
        raise LookupError("seen by the program's own hook")
    import time

    time.sleep(60)


def unraisable():
    class Loud(object):
        def __del__(self):
            raise ValueError("in __del__")

    if RANK == 1:
        thing = Loud()
        del thing
    say("went on")


def reads():
    lines = sys.stdin.readlines()
    say("read", len(lines), lines[:2], sys.stdin.seekable(), sys.stdin.isatty())


def at_import():
    import noisy

    say("noisy", noisy.VALUE)


def sees():
    import sets

    names = ("ADDED", "OF_RANK", "BY_DEFAULT", "CHANGED", "REMOVED")
    say("sees", [(name, os.environ.get(name)) for name in names], sets.__name__)
    say("path", sys.path)
    inner = os.popen("env").read().split("\n")
    say("env of a child", sorted(line for line in inner if line.partition("=")[0] in names))


def reads_records():
    """Each rank reads all records, however the others read."""
    import fcntl

    import records

    everyone("reading", RANK)
    found = []
    for number in range(8):
        found.append((records.FILE.tell(), records.FILE.read(records.SIZE), os.read(records.COPY, 4), os.read(records.KEPT, 5)))
        everyone("read %d" % number, RANK)
    say("records", found)
    for number in (records.FILE.fileno(), records.COPY, records.KEPT):
        say("descriptor", os.get_inheritable(number), oct(fcntl.fcntl(number, fcntl.F_GETFL)))


def logs():
    import logging

    logging.basicConfig(format="[%(levelname)s] %(message)s", level=logging.INFO)
    logging.info("rank %d logs", RANK)
    logging.getLogger("other").warning("rank %d warns", RANK)


def resources():
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    files = []
    try:
        while True:
            files.append(open(os.devnull))
    except OSError as error:
        say("files", len(files), error.errno)


def debugger():
    import faulthandler
    import gc

    say("faulthandler", faulthandler.is_enabled(), "gc", gc.isenabled(), gc.get_threshold(), gc.get_debug())
    say("collects", gc.collect() >= 0)
    sys.settrace(lambda *_: None)
    sys.settrace(None)


def closes():
    """A program that closes all descriptors but its own streams, as daemons do."""
    os.closerange(3, 4096)
    hello()


def subprograms():
    import subprocess

    say("shell", subprocess.run("echo $RANK $WORLD_SIZE", shell=True, capture_output=True, text=True).stdout.strip())
    code = "import sys, os; print(os.environ['RANK'], 'sitecustomize' in sys.modules, sys.argv)"
    say("python", subprocess.run([sys.executable, "-c", code, "a"], capture_output=True, text=True).stdout.strip())


CASES = {
    "state": state,
    "random": random_numbers,
    "fork-pool": lambda: pool("fork"),
    "spawn-pool": lambda: pool("spawn"),
    "forkserver-pool": lambda: pool("forkserver"),
    "ddp": ddp,
    "loader": loader,
    "asyncio": asynchronous,
    "threads": threads,
    "blas": blas,
    "hello": hello,
    "uncaught": uncaught,
    "chained": chained,
    "exit-3": lambda: leave(3),
    "exit-text": lambda: leave("the program says why"),
    "exit-0": lambda: leave(0),
    "unflushed": unflushed,
    "killed": lambda: crash(9),
    "aborted": lambda: crash(6),
    "segfault": segfault,
    "interrupt": interrupt,
    "hard-exit": hard_exit,
    "saves": saves,
    "leftover": leftover,
    "own-hook": hook_of_its_own,
    "unraisable": unraisable,
    "reads": reads,
    "at-import": at_import,
    "sees": sees,
    "records": reads_records,
    "logs": logs,
    "resources": resources,
    "debugger": debugger,
    "closes": closes,
    "subprograms": subprograms,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
