"""A least-squares fit with mpi4py: `train_mpi.py STEPS FAULT...`; see faults.py, and train_torch.py for the same with torch."""

import pickle
import random
import sys

import rankrun
from mpi4py import MPI

import faults

world = MPI.COMM_WORLD
steps, met = int(sys.argv[1]), faults.Faults(sys.argv[2:])
rank, size = world.Get_rank(), world.Get_size()
weights, speed, first, loss = [0.0] * 8, [0.0] * 8, 0, 0.0

saved = faults.load("checkpoint")
if saved is not None:
    first, weights, speed, loss = pickle.loads(saved)

for step in range(first, steps):
    source = random.Random(1000 * step + rank)
    x = [source.gauss(0, 1) for _ in weights]
    met.meet()
    error = sum(w * a for w, a in zip(weights, x)) - sum(x)
    gradients = world.allgather([error * a for a in x])
    mean = [sum(parts) / size for parts in zip(*gradients)]
    speed = [0.9 * v - 0.02 * g for v, g in zip(speed, mean)]
    weights = [w + v for w, v in zip(weights, speed)]
    loss = world.allreduce(error * error)
    rankrun.progress()
    if (step + 1) % 2 == 0 and rank == 0:
        faults.save("checkpoint", pickle.dumps((step + 1, weights, speed, loss)), met)

if rank == 0:
    faults.tell(steps, loss=loss.hex(), weights=[weight.hex() for weight in weights])
