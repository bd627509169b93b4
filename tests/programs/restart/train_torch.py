"""A training with DistributedDataParallel: `train_torch.py STEPS FAULT...`; see faults.py.

Every two steps rank 0 writes a checkpoint, and an attempt begins where the last one was. The loss at the end tells whether
anything was lost, or done twice.
"""

import gc
import hashlib
import io
import sys

import rankrun
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import faults

steps, met = int(sys.argv[1]), faults.Faults(sys.argv[2:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(5)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
# DDP packs the gradients differently after its first step, and then adds them up in another order. The sums of such numbers
# are exact in any order.
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: (gradient * 4096).round() / 4096)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
half = torch.zeros(16, dtype=torch.float16)
first, loss = 0, torch.zeros(())

saved = faults.load("checkpoint")
if saved is not None:
    state = torch.load(io.BytesIO(saved))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first, half, loss = state["step"], state["half"], state["loss"]

for step in range(first, steps):
    source = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, 8, generator=source)
    met.meet()
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    # The same in half precision, which is a case of its own in gloo.
    part = torch.randn(16, generator=source).to(torch.float16)
    dist.all_reduce(part)
    half = half * 0.5 + part
    dist.all_reduce(loss.detach_())
    rankrun.progress()
    if (step + 1) % 2 == 0 and rank == 0:
        buffer = io.BytesIO()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "half": half, "loss": loss}
        torch.save(state, buffer)
        faults.save("checkpoint", buffer.getvalue(), met)

weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
if rank == 0:
    half_sum = hashlib.sha256(half.numpy().tobytes()).hexdigest()
    faults.tell(steps, loss=loss.item().hex(), weights=hashlib.sha256(weights).hexdigest(), half=half_sum)
# While DDP holds the group, gloo's threads run on. One that lets go of a tensor while the interpreter ends aborts the process
# (https://github.com/pytorch/pytorch/issues/190489).
del model, optimizer
gc.collect()
dist.destroy_process_group()
