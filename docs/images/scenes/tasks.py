"""Two tasks of rich's Progress in each rank."""

import os
import time

from rich.progress import Progress

rank = int(os.environ["RANK"])
with Progress() as progress:
    load = progress.add_task(f"rank {rank} load", total=40)
    train = progress.add_task(f"rank {rank} train", total=60)
    for step in range(60):
        time.sleep(0.05 + 0.01 * rank)
        progress.advance(load)
        progress.advance(train)
print(f"rank {rank} done")
