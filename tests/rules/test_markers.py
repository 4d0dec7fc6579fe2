"""Markers stand where somebody has to judge something in this program, and nowhere else."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)


"""


def markers(source: str, code: str, target: str = "2.7") -> int:
    result, after = migrate({"example.py": HEAD + source}, Options(Version(target)))
    assert not result.problems
    return sum(text.count(f"TODO(fsdp-migrate {code})") for text in after.values())


# -- offloading -----------------------------------------------------------------------------------

OFFLOADS = """\
def main(net, args):
    {init}
    model = FSDP(net, cpu_offload=CPUOffload({flag}))
    model.clip_grad_norm_(1.0)
"""


@pytest.mark.parametrize(
    ("init", "flag", "number"),
    [
        ('dist.init_process_group("nccl")', "True", 1),
        ('dist.init_process_group(backend="nccl")', "True", 1),
        ("dist.init_process_group(args.backend)", "True", 1),
        ("dist.init_process_group(**args)", "True", 1),
        ("pass", "True", 1),
        ("dist.init_process_group()", "True", 0),
        ("dist.init_process_group(backend=None)", "True", 0),
        ('dist.init_process_group("gloo")', "True", 0),
        ('dist.init_process_group("cpu:gloo,cuda:nccl")', "True", 0),
        ('dist.init_process_group(f"cpu:gloo,{args.kind}:nccl")', "True", 0),
        ('dist.init_process_group(f"{args.kind}:nccl")', "True", 1),
        ('dist.init_process_group("nccl")', "False", 0),
    ],
)
def test_offloading_needs_a_backend_for_cpus(init: str, flag: str, number: int) -> None:
    assert markers(OFFLOADS.format(init=init, flag=flag), "FSDP115") == number


def test_a_file_has_the_process_groups_that_it_makes() -> None:
    ours = OFFLOADS.format(init='dist.init_process_group("cpu:gloo,cuda:nccl")', flag="True")
    other = 'import torch.distributed as dist\n\ndist.init_process_group("nccl")\n'
    for first, number in ((ours, 0), (ours.replace("    dist.init", "    # dist.init"), 1)):
        _, after = migrate({"example.py": HEAD + first, "other.py": HEAD + other})
        assert after["example.py"].count("TODO(fsdp-migrate FSDP115)") == number


# -- ignored modules ------------------------------------------------------------------------------

IGNORES = """\
def main(model, args):
    {freeze}
    return FSDP(model, ignored_modules={ignored})
"""


@pytest.mark.parametrize(
    ("freeze", "ignored", "number"),
    [
        ("model.tower.requires_grad_(False)", "[model.tower]", 0),
        ("for p in model.tower.parameters(): p.requires_grad = False", "[model.tower]", 0),
        (
            "for p in model.tower.parameters():\n        p.requires_grad_(False)",
            "(model.tower,)",
            0,
        ),
        ("pass", "[model.tower]", 1),
        ("model.head.requires_grad_(False)", "[model.tower]", 1),
        ("model.tower.requires_grad_(False)", "[model.tower, model.head]", 1),
        ("model.tower.requires_grad_(args.frozen)", "[model.tower]", 1),
        ("if args.frozen: model.tower.requires_grad_(False)", "[model.tower]", 1),
        ("model.tower.requires_grad_(False); model.requires_grad_(True)", "[model.tower]", 1),
        ("model.tower.requires_grad_(False); model.x.requires_grad = True", "[model.tower]", 1),
        (
            "model.tower.requires_grad_(False); setattr(model.x, 'requires_grad', True)",
            "[model.tower]",
            1,
        ),
        ("model.tower.requires_grad_(False)", "args.ignored", 1),
        ("for p in model.tower.parameters(): args.p.requires_grad = False", "[model.tower]", 1),
    ],
)
def test_ignored_parameters_that_are_trained(freeze: str, ignored: str, number: int) -> None:
    assert markers(IGNORES.format(freeze=freeze, ignored=ignored), "FSDP113") == number


# -- prefetching ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("BackwardPrefetch.BACKWARD_PRE", 0),
        ("PRE", 0),
        ("PREFETCH[args.prefetch]", 0),
        ("BackwardPrefetch.BACKWARD_PRE if args.a else PRE", 0),
        ("BackwardPrefetch.BACKWARD_POST", 1),
        ("BOTH[args.prefetch]", 0),
        ("None", 1),
        ("BackwardPrefetch.BACKWARD_PRE if args.a else None", 0),
        ("args.prefetch", 1),
        ("BackwardPrefetch[args.prefetch]", 1),
    ],
)
def test_prefetching_that_may_not_have_been_as_fsdp2s(value: str, number: int) -> None:
    source = f"""\
PRE = BackwardPrefetch.BACKWARD_PRE
PREFETCH = {{"pre": BackwardPrefetch.BACKWARD_PRE}}
BOTH = {{"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST}}


def build(model, args):
    return FSDP(model, backward_prefetch={value})
"""
    assert markers(source, "FSDP204") == number


# -- strategies -----------------------------------------------------------------------------------

ACCUMULATES = """\
{table}


def build(model, strategy):
    return FSDP(model, sharding_strategy=strategy)


def train(net, batches, args):
    model = build(net, {given})
    with model.no_sync():
        model(batches[0]).sum().backward()
    model(batches[1]).sum().backward()
"""


@pytest.mark.parametrize(
    ("table", "given", "number"),
    [
        ("", "args.strategy", 0),
        ("TABLE = {'full': ShardingStrategy.FULL_SHARD}", "args.strategy", 0),
        ("TABLE = {'op': ShardingStrategy.SHARD_GRAD_OP}", "args.strategy", 1),
        ("", "ShardingStrategy[args.strategy]", 1),
        ("", "ShardingStrategy(args.strategy)", 1),
        ("", "getattr(ShardingStrategy, args.strategy)", 1),
    ],
)
def test_accumulation_where_parameters_may_stay_gathered(
    table: str, given: str, number: int
) -> None:
    assert markers(ACCUMULATES.format(table=table, given=given), "FSDP402") == number


def test_precision_of_accumulated_gradients_is_said_in_the_report_alone() -> None:
    source = """\
def train(net, batches):
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(net, mixed_precision=precision)
    with model.no_sync():
        model(batches[0]).sum().backward()
"""
    assert markers(source, "FSDP402") == 0
    result, _ = migrate({"example.py": HEAD + source})
    assert any("accumulates in reduce_dtype" in d.message for d in result.decisions)


@pytest.mark.parametrize(("strategy", "number"), [("NO_SHARD", 0), ("FULL_SHARD", 1)])
def test_what_every_rank_had_is_no_part(strategy: str, number: int) -> None:
    source = f"""\
def train(net):
    model = FSDP(net, sharding_strategy=ShardingStrategy.{strategy}, use_orig_params=True)
    print(sum(p.numel() for p in model.parameters()))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
    assert markers(source, "FSDP408") == number
    assert markers(source, "FSDP401") == number


@pytest.mark.parametrize(("target", "number"), [("2.7", 1), ("2.9", 1), ("2.10", 0), ("2.13", 0)])
def test_replication_is_marked_for_releases_that_may_reduce_wrongly(
    target: str, number: int
) -> None:
    source = "def build(m):\n    return FSDP(m, sharding_strategy=ShardingStrategy.NO_SHARD)\n"
    assert markers(source, "FSDP201", target) == number


# -- late activation checkpointing ----------------------------------------------------------------

CHECKPOINTS = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        {forward}


def build(args):
    model = FSDP(Net())
    if args.checkpoint:
        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    return model


def train(args, batches):
    model = build(args)
    {loop}


@torch.no_grad()
def evaluate(model, batches):
    return [model(x) for x in batches], model(batches[0])
"""
PLAIN = "for x in batches:\n        model(x).sum().backward()"
ONCE = "return self.b(self.a(x))"


@pytest.mark.parametrize(
    ("forward", "loop", "target", "number"),
    [
        (ONCE, PLAIN, "2.7", 0),
        (ONCE, "loss = model(batches).sum()\n    loss.backward()", "2.7", 0),
        ("return self.a(self.a(x))", PLAIN, "2.7", 1),
        ("for _ in range(2):\n            x = self.a(x)\n        return x", PLAIN, "2.7", 1),
        (ONCE, "(model(batches[0]) + model(batches[1])).sum().backward()", "2.7", 1),
        (
            ONCE,
            "loss = 0\n    for x in batches:\n        loss += model(x).sum()\n    loss.backward()",
            "2.7",
            1,
        ),
        (ONCE, "return model(batches)", "2.7", 1),
        (
            ONCE,
            "loss = 0\n    for i, x in enumerate(batches):\n        loss += model(x).sum()\n"
            "        if i % 2:\n            loss.backward()",
            "2.7",
            1,
        ),
        (
            ONCE,
            "for x in batches:\n        with args.autocast():\n            loss = model(x).sum()\n"
            "        args.scaler.scale(loss).backward()",
            "2.7",
            0,
        ),
        (ONCE, "args.trainer.fit(model)", "2.7", 1),
        ("return self.a(self.a(x))", PLAIN, "2.11", 0),
    ],
)
def test_checkpointing_of_modules_that_may_run_twice(
    forward: str, loop: str, target: str, number: int
) -> None:
    source = CHECKPOINTS.format(forward=forward, loop=loop)
    assert markers(source, "FSDP117", target) == number


# -- parts of other models ------------------------------------------------------------------------

AVERAGES = """\
class Average{bases}:
    def update(self, model):
        {update}


def build(net, precision):
    return FSDP(net, mixed_precision=precision)


def main(net):
    model = build(net, MixedPrecision(param_dtype=torch.bfloat16))
    average = Average()
    average.update(model)
    {more}
"""


@pytest.mark.parametrize(
    ("bases", "update", "more", "number"),
    [
        ("", "self.n = model.n", "pass", 0),
        ("", "with FSDP.summon_full_params(model): self.n = model.n", "pass", 0),
        ("", "self.last = model", "pass", 1),
        ("", "self.parts.append(model)", "pass", 1),
        ("", "setattr(self, 'last', model)", "pass", 1),
        ("", "self.last = max(model, self.last)", "pass", 1),
        ("(nn.ModuleDict)", "self.n = model.n", "whole = build(average, MixedPrecision())", 1),
        ("(dict)", "self.n = model.n", "pass", 1),
    ],
)
def test_a_method_of_the_projects_own_puts_a_model_into_nothing(
    bases: str, update: str, more: str, number: int
) -> None:
    source = AVERAGES.format(bases=bases, update=update, more=more)
    assert markers(source, "FSDP202") == number


# -- causes ---------------------------------------------------------------------------------------

PRIVATE = "from torch.distributed.fsdp._runtime_utils import {names}\n\n\n{uses}"


@pytest.mark.parametrize(("number", "markers"), [(1, 1), (3, 3), (4, 1), (12, 1)])
def test_many_private_names_of_a_file_have_one_marker(number: int, markers: int) -> None:
    names = ["_unshard", "_wait", "_start", "_reduce_grad", "_pre_forward", "_post_forward"]
    names = (names + [f"{name}_of_units" for name in names])[:number]
    uses = "".join(f"{name}(model)\n" for name in names)
    source = PRIVATE.format(names=", ".join(names), uses=uses)
    result, after = migrate({"example.py": source})
    text = after["example.py"]
    assert text.count("TODO(fsdp-migrate") == markers
    assert len(result.decisions) == number  # each is a site of its own still
    if number == 4:
        assert "_unshard, _wait, _start and _reduce_grad are private to FSDP1" in text
    if number == 12:
        assert "4 more below are private to FSDP1" in " ".join(text.replace("#", "").split())
    assert not migrate(after)[0].changes


def test_names_that_something_else_is_said_of_have_markers_of_their_own() -> None:
    names = ["_unshard", "_wait", "_lazy_init", "_reduce_grad", "_start"]
    uses = "".join(f"{name}(model)\n" for name in names)
    _, after = migrate({"example.py": PRIVATE.format(names=", ".join(names), uses=uses)})
    assert after["example.py"].count("TODO(fsdp-migrate") == 2
    assert "_lazy_init is private to FSDP1" in after["example.py"]


# -- said once, and of several names ---------------------------------------------------------------

SAVES = """\
from torch.distributed.fsdp import StateDictType

KINDS = ["FULL_STATE_DICT", "LOCAL_STATE_DICT"]
model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)


def save(kind, path):
    with FSDP.state_dict_type(model, StateDictType[kind]):
        torch.save(model.state_dict(), path)


def load(kind, path):
    with FSDP.state_dict_type(model, StateDictType[kind]):
        model.load_state_dict(torch.load(path))
"""


def test_a_setting_of_the_program_is_judged_once_in_a_file() -> None:
    _, after = migrate({"example.py": HEAD + SAVES})
    assert after["example.py"].count("Where the kind is LOCAL_STATE_DICT") == 1
    both = {"example.py": HEAD + SAVES, "more.py": HEAD + SAVES}
    assert sum(t.count("Where the kind is LOCAL") for t in migrate(both)[1].values()) == 2


def test_each_place_of_a_kind_that_the_program_names_has_its_own() -> None:
    named = SAVES.replace("StateDictType[kind]", "StateDictType.LOCAL_STATE_DICT")
    _, after = migrate({"example.py": HEAD + named})
    assert after["example.py"].count("holds its shard of every parameter") == 2


QUOTED = """\
from typing import Union

model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)


class Settings:
    one: Union["torch.distributed.fsdp.ShardingStrategy", "torch.distributed.fsdp.StateDictType"]
"""


def test_one_marker_for_the_names_in_a_statement() -> None:
    assert markers(QUOTED, "FSDP404") == 1
    _, after = migrate({"example.py": HEAD + QUOTED})
    assert "FSDP2 has none of ShardingStrategy and StateDictType." in after["example.py"]
    apart = QUOTED.replace('", "', '"]\n    two: Union["')
    assert markers(apart, "FSDP404") == 2


# -- what nothing uses -----------------------------------------------------------------------------

POLICIES = """\
spare = MixedPrecision(param_dtype=torch.bfloat16{buffers})


def build(model):
    return FSDP(model)
"""
BUFFERS = ", buffer_dtype=torch.bfloat16"


@pytest.mark.parametrize(
    ("buffers", "more", "published", "number"),
    [
        (BUFFERS, "", True, 1),
        ("", "", True, 0),  # nothing of it is lost
        (BUFFERS, "", False, 0),
        (BUFFERS, "print(spare)\n", False, 1),
        (BUFFERS, "print(getattr(build, 'spare'))\n", False, 1),
    ],
)
def test_policies_that_no_model_has(buffers: str, more: str, published: bool, number: int) -> None:
    source = HEAD + POLICIES.format(buffers=buffers) + more
    _, after = migrate({"example.py": source}, Options(published=published))
    assert after["example.py"].count("TODO(fsdp-migrate FSDP202)") == number
    assert "MixedPrecisionPolicy" in after["example.py"]


# -- parameters that move --------------------------------------------------------------------------

MOVES = """\
def train(net, batches, device):
    model = FSDP(net, use_orig_params=True)
    model.eval()
    with torch.no_grad():
        model(batches[0])
    for p in model.parameters():
        {write}
    model.train()
    model(batches[1]).sum().backward()
"""
LATE = "After an evaluation"


@pytest.mark.parametrize(
    ("write", "number"),
    [
        ("p.data = p.data.to(device, non_blocking=True)", 0),
        ("p.data = p.data.cpu()", 0),
        ("p.data = p.to('cpu')", 0),
        ("p.data = p.data * 2", 1),
        ("p.data = p.data.cpu(); p.data.mul_(2)", 1),
        ("p.data = other.data.cpu()", 1),
    ],
)
def test_parameters_that_only_move_keep_their_values(write: str, number: int) -> None:
    _, after = migrate({"example.py": HEAD + MOVES.format(write=write)})
    assert after["example.py"].count(LATE) == number
