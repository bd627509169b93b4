"""A training with Hugging Face's accelerate: rank 1 fails in the first attempt, and the next goes on from the checkpoint."""

import gc
import os
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(2)), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
first = 0
if os.path.isdir("accelerate-state"):
    accelerator.load_state("accelerate-state")
    with open("accelerate-epoch") as epoch:
        first = int(epoch.read())
loss = None
for epoch in range(first, 4):
    for x in data:
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.wait_for_everyone()
    if epoch == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        accelerator.save_state("accelerate-state")
        if accelerator.is_main_process:
            with open("accelerate-epoch", "w") as file:
                file.write("2")
        accelerator.wait_for_everyone()
        if accelerator.process_index == 1:
            raise ValueError("bad batch")
losses = accelerator.gather(loss.detach().reshape(1))
if accelerator.is_main_process:
    print(f"from {first}: {accelerator.num_processes} processes, loss {losses.mean().item():.5f}", flush=True)
# While DDP holds the group, gloo's threads run on. One that lets go of a tensor while the interpreter ends aborts the process
# (https://github.com/pytorch/pytorch/issues/190489).
accelerator.free_memory()
del model, optimizer, data, loss, losses
gc.collect()
accelerator.end_training()
sys.exit(0)
