"""A tqdm bar in each rank."""

import os
import time

from tqdm import tqdm

rank = int(os.environ["RANK"])
for step in tqdm(range(60), desc=f"rank {rank}", ncols=80):
    time.sleep(0.05 + 0.01 * rank)
    if step == 30 and rank == 0:
        tqdm.write("rank 0 is half way")
