"""Ranks that say how far they are."""

import time

import rankrun

for epoch in range(1, 4):
    for batch in range(0, 1000, 250):
        rankrun.note(f"epoch {epoch}, batch {batch}")
        time.sleep(0.15 + 0.03 * rankrun.rank())
    if rankrun.rank() == 0:
        print(f"epoch {epoch} done", flush=True)
if rankrun.rank() == 3:
    raise RuntimeError("loss is nan")
time.sleep(1000)
