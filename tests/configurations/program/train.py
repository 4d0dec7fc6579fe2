"""A decoder's training loop under accelerate, as its file beside this one configures it.

What varies comes from the environment: SEED_BY_RANK, BUFFER, DEVICES (a machine), RESUME.
"""

import os
import sys
from pathlib import Path

import torch
from launched import read
from torch import nn

read(Path(__file__).with_name("accelerate.yaml"))

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402

if os.environ.get("DEVICES"):  # each machine has as many, and there are several
    from torch.distributed.fsdp import _init_utils

    number = int(os.environ["DEVICES"])
    groups = _init_utils._init_intra_and_inter_node_groups
    _init_utils._init_intra_and_inter_node_groups = lambda group, _: groups(group, number)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList([Block(32) for _ in range(3)])
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 64, bias=False)
        if os.environ.get("BUFFER"):
            self.register_buffer("scale", 1 + torch.arange(32) / 1000, persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        if os.environ.get("BUFFER"):
            x = (x.float() * self.scale.float()).to(x.dtype)
        return self.head(self.norm(x))


def main():
    accelerator = Accelerator()
    set_seed(1 + int(os.environ.get("SEED_BY_RANK", "0")) * accelerator.process_index)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    set_seed(100 + accelerator.process_index)
    model, optimizer = accelerator.prepare(model, optimizer)
    if os.environ.get("RESUME"):
        accelerator.load_state(os.environ["RESUME"])
    for _ in range(6):
        tokens = torch.randint(64, (4, 9), device=accelerator.device)
        logits = model(tokens[:, :-1]).flatten(0, 1).float()
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if len(sys.argv) > 1:
        accelerator.save_state(sys.argv[1])


main()
