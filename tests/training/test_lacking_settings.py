"""Dictionaries of arguments that have some of them in one case only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(x).relu()


def build(net, words):
    classes = {type(m) for m in net.modules() if type(m).__name__ in words}
    frozen = [m for m in net if "frozen" in words and isinstance(m, nn.Linear)]
    params = dict(
        use_orig_params=True,
        sharding_strategy=getattr(ShardingStrategy, words[0]),
        device_id=torch.device("cpu"),
    )
    if "half" in words:
        params["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    if "offload" in words:
        params["cpu_offload"] = CPUOffload(offload_params=True)
    if frozen:
        params["ignored_modules"] = frozen
    if "sync" in words:
        params["sync_module_states"] = True
    if "group" in words:
        params["process_group"] = dist.new_group([0, 1])
    if classes:
        params.update(
            auto_wrap_policy=functools.partial(
                transformer_auto_wrap_policy, transformer_layer_cls=classes
            ),
            forward_prefetch=True,
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
            limit_all_gathers=True,
        )
    return FSDP(net, **params)


def main():
    words = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(5 + ("sync" in words) * dist.get_rank())
    net = nn.Sequential(Block(), Block(), nn.Linear(6, 2))
    if "frozen" in words:
        torch.manual_seed(5)
        net[2].reset_parameters()
        net[2].requires_grad_(False)
    model = build(net, words)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(5):
        loss = model(torch.randn(4, 6)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(
    "words",
    [
        "FULL_SHARD",
        "SHARD_GRAD_OP Block half",
        "FULL_SHARD Block frozen",
        "FULL_SHARD Block sync",
        "FULL_SHARD Block sync group",
    ],
)
def test_trains_the_same(launcher: Launcher, tmp_path: Path, words: str) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "fully_shard(net, " in both.text()
    before = launcher.script(both.before, *words.split(), fsdp1="allow")
    after = launcher.script(both.after, *words.split(), fsdp1="forbid")
    assert compare(before, after, tolerance=1e-3 if "half" in words else 1e-5) == 5 * 2


@pytest.mark.parametrize("words", ["SHARD_GRAD_OP Block frozen"])
def test_a_strategy_that_is_written_out_trains_the_same(
    launcher: Launcher, tmp_path: Path, words: str
) -> None:
    chosen, written_out = "getattr(ShardingStrategy, words[0])", "ShardingStrategy.SHARD_GRAD_OP"
    source = PROGRAM.replace(chosen, written_out)
    both = written({"train.py": source.encode()}, tmp_path)
    assert '"reshard_after_forward": False' in both.text()
    before = launcher.script(both.before, *words.split(), fsdp1="allow")
    after = launcher.script(both.after, *words.split(), fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 5 * 2


RETURNED = (
    PROGRAM.replace(
        "def build(net, words):",
        """def wants_grad(module):
    return not [*module.children()] and any(p.requires_grad for p in module.parameters())


def settings(words):
    params = {}
    if "half" in words:
        half = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
        params["mixed_precision"] = half
    by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    if "linear" in words:
        by_function = functools.partial(lambda_auto_wrap_policy, lambda_fn=wants_grad)
        policy = functools.partial(_or_policy, policies=[by_function, by_class])
    else:
        policy = by_class
    params["auto_wrap_policy"] = policy
    params["sharding_strategy"] = getattr(ShardingStrategy, words[0])
    params["device_id"] = torch.device("cpu")
    if "sync" in words:
        params["sync_module_states"] = True
    return params


def build(net, words):
    given = settings(words)
    print(f"settings: {given}", file=sys.stderr)
    return FSDP(net, **given)


def built_otherwise(net, words):""",
    )
    .replace(
        "self.linear =",
        'self.register_buffer("scale", torch.full((6,), 1.001))\n        self.linear =',
    )
    .replace("x + self.linear(x).relu()", "x + self.linear(x).relu() * self.scale")
    .replace(
        "import transformer_auto_wrap_policy",
        "import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy",
    )
)
RETURNED = (
    RETURNED[: RETURNED.index("def built_otherwise")] + RETURNED[RETURNED.index("def main") :]
)


@pytest.mark.parametrize(
    "words", ["FULL_SHARD", "SHARD_GRAD_OP half linear", "FULL_SHARD linear sync", "NO_SHARD half"]
)
def test_what_a_function_puts_together_trains_the_same(
    launcher: Launcher, tmp_path: Path, words: str
) -> None:
    both = written({"train.py": RETURNED.encode()}, tmp_path)
    assert "shard(net, **given" not in both.text()
    before = launcher.script(both.before, *words.split(), fsdp1="allow")
    after = launcher.script(both.after, *words.split(), fsdp1="forbid")
    assert compare(before, after, tolerance=1e-3 if "half" in words else 1e-5) == 5 * 2
