"""A training whose result does not depend on the number of ranks: `train_nodes.py STEPS PACE FAULT...`; see faults.py.

Each batch of 24 samples is divided among the ranks. What a sample adds to the gradient is rounded, so that the sums are exact in
any order. An attempt makes PACE steps and then waits to be ended, unless it reaches the last step.
"""

import hashlib
import io
import os
import socket
import sys
import time

import rankrun
import torch
import torch.distributed as dist

import faults

steps, pace = int(sys.argv[1]), int(sys.argv[2])
met = faults.Faults(sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
parameters = list(model.parameters())
for parameter in parameters:
    parameter.register_hook(lambda gradient: (gradient * 4096).round() / 4096)
optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
first, loss = 0, torch.zeros(())

saved = faults.load("checkpoint")
if saved is not None:
    state = torch.load(io.BytesIO(saved))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first, loss = state["step"], state["loss"]

print(f"begin {faults.ATTEMPT}: {first} of {steps}, {size} ranks, {socket.gethostname()}", file=sys.stderr, flush=True)
for step in range(first, steps):
    while step >= (faults.ATTEMPT + 1) * pace:
        time.sleep(0.1)
    met.meet()
    batch = torch.randn(24, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad(set_to_none=False)
    loss = torch.zeros(())
    for x in batch[rank::size]:
        own = (model(x) - x.sum()).square().sum()
        own.backward()
        loss += (own.detach() * 4096).round() / 4096
    dist.all_reduce(loss)
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        parameter.grad = gradient / 32
    optimizer.step()
    rankrun.progress()
    if (step + 1) % 2 == 0 and rank == 0:
        buffer = io.BytesIO()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "loss": loss}
        torch.save(state, buffer)
        faults.save("checkpoint", buffer.getvalue(), met)
    time.sleep(0.02)

weights = b"".join(parameter.detach().numpy().tobytes() for parameter in parameters)
if rank == 0:
    faults.tell(steps, loss=loss.item().hex(), weights=hashlib.sha256(weights).hexdigest())
dist.destroy_process_group()
