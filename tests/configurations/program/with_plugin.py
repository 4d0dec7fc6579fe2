"""The training loop of ``train.py`` beside it, with accelerate's plugin made in the program."""

import functools
import os
import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


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

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make_plugin():
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallelPlugin(
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        forward_prefetch=False,
        limit_all_gathers=True,
        use_orig_params=True,
        auto_wrap_policy=policy,
        cpu_offload=CPUOffload(offload_params=False),
        mixed_precision_policy=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
        state_dict_config=FullStateDictConfig(offload_to_cpu=True, rank0_only=False),
    )


def main():
    accelerator = Accelerator(fsdp_plugin=make_plugin())
    set_seed(1)
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
