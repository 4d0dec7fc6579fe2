"""A small network that Lightning's Trainer trains with FSDPStrategy."""

import os

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(16, 1)

    def loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.head(self.blocks(x)).float(), y)

    def training_step(self, batch, index):
        loss = self.loss(batch)
        if self.global_rank == 0:
            print(f"loss {loss.item():.9g}")
        return loss

    def validation_step(self, batch, index):
        loss = self.loss(batch)
        if self.global_rank == 0:
            print(f"validation {loss.item():.9g}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
trainer = L.Trainer(
    accelerator="gpu",
    devices=2,
    max_steps=6,
    val_check_interval=3,
    limit_val_batches=1,
    logger=False,
    enable_progress_bar=False,
    strategy=FSDPStrategy(auto_wrap_policy={Block}),
)
loader = DataLoader(data, batch_size=4)
trainer.fit(Net(), loader, loader, ckpt_path=os.environ.get("RESUME"))
