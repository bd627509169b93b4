"""A rank that computes, saves its state on SIGTERM, and goes on from it in the job's next life: resume.py DIRECTORY [SECONDS].

Started from the beginning, it waits in the middle for the signal. It writes its state for so many seconds.
"""

import os
import signal
import sys
import time

STEPS, MIDDLE = 200, 50

directory, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
rank = os.environ["RANKRUN_RANK"]
stopping = False


def stop(number, frame):
    global stopping
    stopping = True


def mark(name, text, mode="w"):
    with open(f"{directory}/{name}.{rank}", mode) as file:
        file.write(text)


def save(step, value):
    path = f"{directory}/state.{rank}"
    with open(path + ".part", "w") as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            file.seek(0)
            file.write("#" * 65536 + "\n")
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.1)
        file.seek(0)
        file.truncate()
        file.write(f"{step} {value}")
    os.rename(path + ".part", path)


signal.signal(signal.SIGTERM, stop)
try:
    step, value = map(int, open(f"{directory}/state.{rank}").read().split())
except FileNotFoundError:
    step, value = 0, int(rank) + 1
mark("lives", f"{step}\n", "a")
waits = step == 0 and "RESUME_UNDISTURBED" not in os.environ
while step < STEPS and not stopping:
    if waits and step == MIDDLE:
        mark("up", f"{os.getpid()} {os.environ['RANKRUN_JOB_ID']}\n")
        time.sleep(0.01)
        continue
    value = (value * 6364136223846793005 + step) % 2**64
    step += 1
if step < STEPS:
    save(step, value)
else:
    mark("result", str(value))
