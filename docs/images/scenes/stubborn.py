"""Rank 1 ignores every signal that can be ignored."""

import os
import signal
import time

if os.environ["RANK"] == "1":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
print("working", flush=True)
time.sleep(1000)
