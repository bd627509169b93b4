"""Each rank works until ^C, and then needs a second to save."""

import os
import time

rank = int(os.environ["RANK"])
try:
    for step in range(1000):
        print(f"step {step}", flush=True)
        time.sleep(1)
except KeyboardInterrupt:
    time.sleep(0.5 + 0.2 * rank)
    print("saved", flush=True)
    raise
