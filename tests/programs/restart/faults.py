"""What happens to the ranks of a training, and the training's checkpoint.

Faults come as `ATTEMPT:RANK:STEP:FATE`, one argument each. The step counts from the beginning of the attempt. Fates with
`-save` happen to rank 0 while it writes a checkpoint.
"""

import json
import os
import signal
import time

ATTEMPT = int(os.environ["RANKRUN_ATTEMPT"])
RANK = int(os.environ["RANKRUN_RANK"])


class Faults:
    def __init__(self, words):
        faults = [word.split(":") for word in words]
        own = [(int(step), fate) for attempt, rank, step, fate in faults if (int(attempt), int(rank)) == (ATTEMPT, RANK)]
        self.step, self.fate = own[0] if own else (None, "")
        self.done = 0

    def meet(self, is_saving=False):
        """Called in every step once before its sum, and once by rank 0 in the midst of writing a checkpoint."""
        is_due = self.done == self.step and is_saving == self.fate.endswith("-save")
        if not is_saving:
            self.done += 1
        if not is_due:
            return
        fate = self.fate.removesuffix("-save")
        if fate == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        if fate == "exit":
            os._exit(40 + RANK)
        if fate == "memory":
            with open(os.path.join(os.environ["MEMORY_CGROUP"], "cgroup.procs"), "w") as own:
                own.write("0")
            kept = []
            while True:
                kept.append(b"x" * (1 << 20))
        raise ValueError("bad batch")


def load(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def save(path, content, faults):
    """A checkpoint is whole or is not there, whenever its writer ends."""
    with open(path + ".new", "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        faults.meet(is_saving=True)
        file.write(content[len(content) // 2 :])
    os.rename(path + ".new", path)


def tell(step, **values):
    print(json.dumps({"step": step, **values}, sort_keys=True), flush=True)
