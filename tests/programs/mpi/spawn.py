"""Groups that ranks ask for: spawn.py MODE [ARGUMENT]. Run as `spawn.py MODE child` it is a rank of such a group."""

import os
import shlex
import signal
import subprocess
import sys

from mpi4py import MPI

mode, rest = sys.argv[1], sys.argv[2:]
world = MPI.COMM_WORLD
is_child = "child" in rest


def say(*words):
    # One write, so that lines of different ranks are not mixed.
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def hold():
    """Stays, and has told the test so."""
    with open(os.path.join(os.environ["RANKRUN_TEST_DIR"], f"child-{world.rank}.pid"), "w") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()


def child():
    parent = MPI.Comm.Get_parent()
    if mode == "merge":
        merged = parent.Merge(high=True)
        total = merged.allreduce(merged.rank)
        say("child", world.rank, "of", world.size, "sum", total, "group", os.environ["RANKRUN_GROUP"])
        merged.Free()
    elif mode == "apps":
        say("child", world.rank, "of", world.size, *(word for word in rest if word != "child"))
    elif mode == "crash" and world.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    elif mode == "raise" and world.rank == 1:
        raise ValueError("a spawned rank has failed")
    elif mode == "hold":
        hold()
    elif mode == "outlive":
        parent.Disconnect()
        # The parent ends when it has been disconnected, and these ranks are the last.
        with open(os.path.join(os.environ["RANKRUN_TEST_DIR"], f"child-{world.rank}.pid"), "w") as file:
            file.write(f"{os.getpid()}\n")
        while not os.path.exists(os.path.join(os.environ["RANKRUN_TEST_DIR"], "over")):
            signal.sigtimedwait([signal.SIGUSR2], 0.01)
        say("child", world.rank, "is the last")
        return
    elif mode == "again":
        attempt = os.environ["RANKRUN_ATTEMPT"]
        say("child", world.rank, "of attempt", attempt, "in group", os.environ["RANKRUN_GROUP"])
        if attempt == "0" and world.rank == 1:
            sys.exit(3)
    parent.Disconnect()


def parent():
    one = MPI.COMM_SELF
    if mode == "missing":
        try:
            one.Spawn("/nonexistent/worker", maxprocs=2)
        except MPI.Exception as error:
            say("no worker", error.Get_error_class() != MPI.SUCCESS)
        return
    if mode == "unbound":
        # A daemon that nothing but its descent shows to be of this rank. It computes for a while when the rank has ended.
        script = "echo up > $0; while kill -0 $1; do :; done; i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo done > $0"
        command = f"/bin/sh -c {shlex.quote(script)} {rest[0]} {os.getpid()} 2>/dev/null &"
        words = ["env", "-i", "/usr/bin/setsid", "/bin/sh", "-c", command]
        subprocess.run(words, check=True)
        while not os.path.exists(rest[0]):
            pass
        try:
            one.Spawn(sys.executable, [__file__, "quiet", "child"], maxprocs=2)
        except MPI.Exception:
            say("no room")
        return
    if mode == "nowhere":
        try:
            one.Spawn(sys.executable, [__file__, mode, "child"], maxprocs=2, info=MPI.Info.Create({"host": "nowhere"}))
        except MPI.Exception:
            say("no host")
        return
    if mode == "apps":
        words = [[__file__, mode, "a b", "child"], [__file__, mode, "c=d", "child"]]
        group = world.Spawn_multiple([sys.executable] * 2, words, [1, 2])
    elif mode == "place":
        info = MPI.Info.Create({"wdir": rest[0], "env": "MINE=of the caller"})
        group = one.Spawn("sh", ["-c", f'pwd; echo "$MINE"; exec {sys.executable} {__file__} quiet child'], maxprocs=1, info=info)
    elif mode == "many":
        for _ in range(int(rest[0])):
            one.Spawn(sys.executable, [__file__, "quiet", "child"], maxprocs=2).Disconnect()
        say("all over", len(os.listdir(f"/proc/{os.getppid()}/fd")) < 100)
        return
    else:
        group = world.Spawn(sys.executable, [__file__, mode, "child"], maxprocs=2)
    if mode == "merge":
        merged = group.Merge(high=False)
        total = merged.allreduce(merged.rank)
        universe = world.Get_attr(MPI.UNIVERSE_SIZE)
        say("parent", world.rank, "sum", total, "universe", universe)
        merged.Free()
    group.Disconnect()


if is_child:
    child()
else:
    parent()
