"""A training with Lightning: rank 1 fails in the first attempt, and the next goes on from the checkpoint."""

import gc
import logging
import os
import warnings

import pytorch_lightning as lightning
import torch

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, x, _):
        return (self.layer(x) - x.sum(1, keepdim=True)).square().mean()

    def on_train_epoch_end(self):
        if self.current_epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.global_rank == 1:
            raise ValueError("bad batch")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.DataLoader(torch.randn(16, 4, generator=torch.Generator().manual_seed(2)), batch_size=2)
keep = lightning.callbacks.ModelCheckpoint(dirpath="lightning", save_last=True, every_n_epochs=1)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=4,
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = "lightning/last.ckpt" if os.path.exists("lightning/last.ckpt") else None
trainer.fit(Line(), data, ckpt_path=last)
if trainer.is_global_zero:
    print(f"from a checkpoint: {last is not None}, {trainer.world_size} processes, epoch {trainer.current_epoch}", flush=True)
# While DDP holds the group, gloo's threads run on. One that lets go of a tensor while the interpreter ends aborts the process
# (https://github.com/pytorch/pytorch/issues/190489).
del trainer, keep, data
gc.collect()
torch.distributed.destroy_process_group()
