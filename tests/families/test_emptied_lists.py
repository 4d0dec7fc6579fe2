"""What is said of lists that FSDP1's flat parameters never got into."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def build(net, args):
    model = FSDP(net, use_orig_params=True{arguments})
{body}
    return torch.optim.AdamW(groups)
"""
LOOP = """\
decay, rest = [], []
for name, p in model.named_parameters():
    if {test}:
        rest.append(p)
    else:
        decay.append(p)
groups = [{{"params": decay, "weight_decay": args.decay}}, {{"params": rest, "weight_decay": 0.0}}]
"""
PICKED = """\
decay = [p for p in model.parameters() if {test}]
rest = [p for p in model.parameters() if p.ndim < 2]
groups = [{{"params": decay, "weight_decay": args.decay}}, {{"params": rest, "weight_decay": 0.0}}]
"""
SAID = "decay was empty then and its weight decay never applied"


def after(body: str, arguments: str = "") -> str:
    text = PROGRAM.format(body=textwrap.indent(body, 4 * " "), arguments=arguments)
    result, files = migrate({"example.py": text})
    assert not result.problems
    return " ".join(files["example.py"].replace("#", " ").split())


@pytest.mark.parametrize(
    "test",
    [
        "p.ndim <= 1 or name.endswith('.bias')",
        "p.ndim < 2",
        "p.dim() == 1",
        "len(p.shape) == 1 or name in args.skip",
        "not p.ndim >= 2",
    ],
)
def test_a_loop_that_put_everything_with_what_is_not_decayed(test: str) -> None:
    text = after(LOOP.format(test=test))
    assert SAID in text
    assert "pass weight_decay=0 for it (here args.decay)" in text


@pytest.mark.parametrize("test", ["p.ndim >= 2", "p.ndim > 1 and p.requires_grad"])
def test_a_list_of_matrices(test: str) -> None:
    assert SAID in after(PICKED.format(test=test))


def test_without_weight_decay_the_list_is_named() -> None:
    text = after(PICKED.format(test="p.ndim >= 2").replace(', "weight_decay": args.decay', ""))
    assert "decay was empty then, and is not now" in text


@pytest.mark.parametrize(
    "test", ["p.shape[0] == 1", "p.ndim == args.rank", "p.ndim <= 1 and name in args.skip"]
)
def test_what_is_not_known_to_be_empty_is_not_named(test: str) -> None:
    text = after(LOOP.format(test=test))
    assert "ndim and shape are those of the whole parameter." in text


def test_a_list_that_got_more_elsewhere_was_not_empty() -> None:
    body = LOOP.format(test="p.ndim < 2")
    body = body.replace("        rest.append(p)", "        (rest if args.all else decay).append(p)")
    body = body.replace("    if p.ndim", "    decay.append(p)\n    if p.ndim")
    assert "was empty" not in after(body)


def test_without_sharding_parameters_kept_their_shape() -> None:
    strategy = ", sharding_strategy=ShardingStrategy.NO_SHARD"
    assert "was empty" not in after(LOOP.format(test="p.ndim < 2"), strategy)
