"""A small network that Fabric trains with FSDPStrategy."""

import os

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.blocks(x))


def main():
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    strategy = FSDPStrategy(auto_wrap_policy={Block})
    fabric = Fabric(accelerator="cuda", devices=2, strategy=strategy)
    fabric.launch()
    model = Net()
    model = fabric.setup_module(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = fabric.setup_optimizers(optimizer)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    if "RESUME" in os.environ:
        fabric.load(os.environ["RESUME"], state)
    for step, (x, y) in enumerate(loader):
        if step < state["step"] or step >= 6:
            continue
        loss = nn.functional.mse_loss(model(x).float(), y)
        if fabric.global_rank == 0:
            print(f"loss {loss.item():.9g}")
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
        if "SAVE" in os.environ and step == 2:
            fabric.save(os.environ["SAVE"], {**state, "step": 3})


main()
