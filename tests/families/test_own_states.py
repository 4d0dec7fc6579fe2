"""Optimizers' own states, states that torch's functions load, and those that nothing loads."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

HEAD = """\
import copy

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, rank, path):
    model = FSDP(net)
    optimizer = torch.optim.{kind}
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
"""
ADAM = "AdamW(model.parameters())"


def program(body: str, kind: str = ADAM) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return HEAD.format(kind=kind) + lines


@pytest.mark.parametrize(
    "body",
    [
        "old = copy.deepcopy(optimizer.state_dict())\ntrain()\noptimizer.load_state_dict(old)",
        "if rank == 0:\n    torch.save(scheduler.state_dict(), path)",
        "scheduler.load_state_dict(torch.load(path))",
        "torch.save(optimizer.state_dict(), f'{path}/{rank}')",
        "optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
    ],
)
def test_states_in_memory_of_schedulers_and_by_rank_stay(body: str) -> None:
    result, after = migrate({"train.py": program(body)})
    assert not [d for d in result.decisions if d.code == "FSDP312"]
    assert all(line.strip() in after["train.py"] for line in body.splitlines())


SEVERAL = (
    "if rank < shards:",
    "if shards > rank:",
    "if hybrid and rank < shards:",
    "if rank <= last:",
    "if not rank >= shards:",
    "if rank < 4:",
    "if rank >= shards:\n    pass\nelse:",
)
ONE = (
    "if rank == 0:",
    "if rank < 1:",
    "if rank <= 0:",
    "if rank < shards and rank == 0:",
    "if rank > shards:",
)


@pytest.mark.parametrize("condition", [*SEVERAL, *ONE])
@pytest.mark.parametrize("loaded", [False, True])
def test_ranks_of_which_each_saves_its_own_part_are_not_one_that_saves_for_all(
    condition: str, loaded: bool
) -> None:
    """Bagel's: of hybrid sharding, the ranks of the first group write a file each."""
    body = f"{condition}\n    torch.save(optimizer.state_dict(), f'{{path}}/{{rank}}.pt')"
    if loaded:
        body = f"optimizer.load_state_dict(torch.load(f'{{path}}/{{rank}}.pt'))\n{body}"
    text = rewritten(program(body).replace("rank, path", "rank, shards, last, hybrid, path"))
    if condition in SEVERAL:
        assert "torch.save(optimizer.state_dict()" in text
        assert "for every rank" not in text
        assert "one rank saves" not in text.lower()
        assert "full_state_dict" not in text
        assert ("own_optimizer_state(" in text) is loaded
    else:
        assert "One rank saves" in text or loaded


def test_sgd_without_a_momentum_has_no_state_that_could_be_lost() -> None:
    body = "if rank == 0:\n    torch.save(optimizer.state_dict(), path)"
    text = rewritten(program(body, "SGD(model.parameters(), lr=0.1)"))
    assert "FSDP312" not in text
    assert "FSDP312" in rewritten(program(body, "SGD(model.parameters(), lr=0.1, momentum=0.9)"))


@pytest.mark.parametrize(
    ("body", "is_whole"),
    [
        ("if rank == 0:\n    torch.save(optimizer.state_dict(), path)", False),  # no load
        (
            "optimizer.load_state_dict(torch.load(path))\n"
            "if rank == 0:\n    torch.save(optimizer.state_dict(), path)",
            True,
        ),
        (
            "optimizer.load_state_dict(torch.load(path))\n"
            "torch.save(optimizer.state_dict(), f'{path}{rank}')\n"
            "if rank == 0:\n    torch.save(optimizer.state_dict(), path)",
            False,  # saved in two ways
        ),
        (
            "if rank == 0:\n    optimizer.load_state_dict(torch.load(path))\n"
            "    torch.save(optimizer.state_dict(), path)",
            False,  # loaded by one rank
        ),
        (
            "optimizer.load_state_dict(torch.load(path))\nstate = optimizer.state_dict()\n"
            "if rank == 0:\n    torch.save(state, path)",
            True,
        ),
    ],
)
def test_a_state_is_whole_where_everything_is_in_sight(body: str, is_whole: bool) -> None:
    text = rewritten(program(body))
    assert ("= get_optimizer_state_dict(" in text) is is_whole
    assert ("    set_optimizer_state_dict(" in text.partition("def main")[2]) is is_whole
    assert "TODO(fsdp-migrate FSDP312)" in text


def test_a_model_that_may_be_ddps_is_told_apart() -> None:
    text = rewritten(
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
        "class Trainer:\n"
        "    def save(self, model, optim, path):\n"
        "        if dist.get_rank() == 0:\n"
        "            torch.save({'m': model.state_dict(), 'o': optim.state_dict()}, path)\n\n"
        "    def load(self, model, optim, path):\n"
        "        saved = torch.load(path)\n"
        "        model.load_state_dict(saved['m'])\n"
        "        optim.load_state_dict(saved['o'])\n\n\n"
        "def main(net, args):\n"
        "    model = FSDP(net) if args.fsdp else DDP(net)\n"
        "    optim = torch.optim.Adam(model.parameters())\n"
        "    trainer = Trainer()\n"
        "    trainer.load(model, optim, args.path)\n"
        "    trainer.save(model, optim, args.path)\n"
    )
    joined = " ".join(text.split())
    assert "if isinstance(model, FSDPModule) else optim.state_dict()" in joined
    assert "else: optim.load_state_dict(saved['o'])" in joined


@pytest.mark.parametrize(
    ("body", "is_separated"),
    [
        ("set_optimizer_state_dict(model, optimizer, torch.load(path))", True),
        ("saved = torch.load(path)\nset_optimizer_state_dict(model, optimizer, saved['o'])", True),
        (
            "saved = torch.load(path)\nset_optimizer_state_dict(\n"
            "    model, optimizer, optim_state_dict=saved.pop('o')\n)",
            True,
        ),
        (
            "state = get_optimizer_state_dict(model, optimizer)\n"
            "dcp.load(state, checkpoint_id=path)\n"
            "set_optimizer_state_dict(model, optimizer, state)",
            False,
        ),
        ("set_optimizer_state_dict(other, plain, torch.load(path))", False),
    ],
)
def test_steps_are_separate_in_what_torch_has_read(body: str, is_separated: bool) -> None:
    assert ("separate_steps(" in rewritten(program(body))) is is_separated


@pytest.mark.parametrize("kind", ["SGD(model.parameters(), lr=0.1, momentum=0.9)"])
def test_sgd_counts_no_steps(kind: str) -> None:
    body = "set_optimizer_state_dict(model, optimizer, torch.load(path))"
    assert "separate_steps(" not in rewritten(program(body, kind))


@pytest.mark.parametrize(
    ("body", "is_marked"),
    [
        ("m, o = get_state_dict(model, optimizer)\ndcp.load(m, path)\ndcp.load(o, path)", True),
        ("state = get_state_dict(model, optimizer)\ndcp.load({'s': state}, path)", True),
        ("state = {'m': model.state_dict()}\ndcp.load(state, path)", False),  # whole: a copy
        ("state = {}\ndcp.load(state, path)", False),
        ("m, o = get_state_dict(model, optimizer)\ndcp.load(m, path)\nreturn m, o", False),
        (
            "m, o = get_state_dict(model, optimizer)\ndcp.load({'m': m}, path)\n"
            "set_state_dict(model, optimizer, model_state_dict=m, optim_state_dict=o)",
            False,
        ),
        ("state = get_state_dict(plain, optimizer)\ndcp.load(state, path)", False),
    ],
)
def test_a_state_that_nothing_loads_is_marked(body: str, is_marked: bool) -> None:
    assert ("FSDP313" in rewritten(program(body))) is is_marked


@pytest.mark.parametrize(
    ("inside", "goes"),
    [
        ("    model.load_state_dict(torch.load(path))", True),
        ("    other.load_state_dict(torch.load(path))", False),
        ("    model.load_state_dict(torch.load(path))\n    print(model)", False),
    ],
)
def test_a_context_of_whole_parameters_around_a_load_goes(inside: str, goes: bool) -> None:
    _, after = migrate({"train.py": program(f"with FSDP.summon_full_params(model):\n{inside}")})
    assert ("full_params(model)" not in after["train.py"]) is goes


GROUP = """\
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(model, args):
"""


@pytest.mark.parametrize(
    ("body", "is_asked"),
    [
        ("if args.many:\n    dist.init_process_group()\n    model = FSDP(model)\nLOAD", True),
        ("dist.init_process_group()\nif args.many:\n    model = FSDP(model)\nLOAD", False),
        ("dist.init_process_group()\nmodel = FSDP(model)\nLOAD", False),
        ("if args.many:\n    dist.init_process_group()\n    model = FSDP(model)\n    LOAD", False),
        (
            "if not dist.is_initialized():\n    dist.init_process_group()\n"
            "if args.many:\n    model = FSDP(model)\nLOAD",
            False,
        ),
        (
            "if args.many:\n    dist.init_process_group()\n    model = FSDP(model)\n"
            "train()\nif args.many:\n    LOAD",
            False,
        ),
        ("if args.many:\n    model = FSDP(model)\nLOAD", False),  # elsewhere, who knows
    ],
)
def test_a_load_where_there_may_be_no_process_group(body: str, is_asked: bool) -> None:
    body = body.replace("LOAD", "model.load_state_dict(torch.load(args.path))")
    text = rewritten(GROUP + "".join(f"    {line}\n" for line in body.splitlines()))
    assert ("if dist.is_initialized():\n        set_model_state_dict(" in text) is is_asked
    assert "broadcast_from_rank0=True" in text


SAVING = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save_on_master(*args, **kwargs):
    if dist.get_rank() == 0:
        torch.save(*args, **kwargs)


def save_everywhere(state, path):
    print(dist.get_rank())
    torch.save(state, path)


class Saver:
    def save(self, path, state):
        if dist.get_rank() != 0:
            return
        torch.save(state, path)


def main(net, path):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    saver = Saver()
    saved = torch.load(path)
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer)
"""


@pytest.mark.parametrize(
    ("body", "is_whole"),
    [
        ("save_on_master({'optimizer': optimizer.state_dict()}, path)", True),
        ("save_on_master(obj={'optimizer': optimizer.state_dict()}, f=path)", True),
        (
            "state = {'optimizer': optimizer.state_dict()}\nstate['epoch'] = 1\n"
            "saver.save(path, state)",
            True,
        ),
        ("saver.save(path, state={'optimizer': optimizer.state_dict()})", True),
        ("save_everywhere({'optimizer': optimizer.state_dict()}, path)", False),
        ("unknown({'optimizer': optimizer.state_dict()}, path)", False),
    ],
)
def test_a_function_may_save_on_one_rank(body: str, is_whole: bool) -> None:
    text = rewritten(SAVING + "".join(f"    {line}\n" for line in body.splitlines()))
    assert ("get_optimizer_state_dict(\n" in text) is is_whole
    assert ("optimizer.state_dict()" not in text) is is_whole


OPTIMUM = """\
import torch
from optimum.bettertransformer import BetterTransformer
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, rank, path):
    state = model.state_dict()
    if rank == 0:
        torch.save(state, path)


def main(net, rank, path, sharded):
    net = BetterTransformer.transform(net)
    model = FSDP(net) if sharded else net
    save(model, rank, path)
"""


def test_what_the_library_optimum_makes_is_no_optimizer() -> None:
    text = rewritten(OPTIMUM)
    assert "FSDP312" not in text
    assert "model_state" in text or "get_model_state_dict" in text


@pytest.mark.parametrize(
    "maker",
    [
        "transformers.optimization import get_scheduler",
        "diffusers.optimization import get_scheduler",
    ],
)
def test_what_libraries_make_of_an_optimizer_is_no_optimizer(maker: str) -> None:
    body = "later = get_scheduler('constant', optimizer=optimizer)\n"
    body += "later.load_state_dict(torch.load(path))"
    text = rewritten(f"from {maker}\n{program(body)}")
    assert "FSDP312" not in text


def test_an_optimizer_of_those_libraries_is_one() -> None:
    head = program("optimizer.load_state_dict(torch.load(path))")
    head = head.replace(f"torch.optim.{ADAM}", "Adafactor(model.parameters())")
    text = rewritten(f"from transformers.optimization import Adafactor\n{head}")
    assert "FSDP312" in text


UNFOLLOWED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Strategy:
    def prepare(self, *given):
        ret = []
        for net in given:
            ret.append((FSDP(net), None))
        return ret[0] if len(ret) == 1 else ret

    def load(self, {model}, optimizer, path):
        {model}.load_state_dict(torch.load(path))
        {held}.load_state_dict(torch.load(path + "o"))
"""


@pytest.mark.parametrize(
    ("model", "held", "is_marked"),
    [
        ("model", "optimizer", True),
        ("meter", "optimizer", False),  # nothing there may be a model
        ("model", "scheduler", False),
    ],
)
def test_an_optimizer_beside_what_may_be_a_model(model: str, held: str, is_marked: bool) -> None:
    text = rewritten(UNFOLLOWED.format(model=model, held=held))
    assert ("FSDP312" in text) is is_marked


BESIDE = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Average{base}:
    def __init__(self, params):
        self.params = [p.clone() for p in params]

    def state_dict(self):
        return dict(enumerate(self.params))


def save(optimizer, average, path):
    state = optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save(average.state_dict(), path)
        torch.save({{"optimizer": state}}, path)


def main(net, batches, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    average = Average(model.parameters()) if path else {otherwise}
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
    save(optimizer, average, path)
"""


@pytest.mark.parametrize(
    ("base", "otherwise", "is_marked"),
    [
        ("", "None", True),
        ("(torch.nn.Module)", "None", False),
        ("", "made(path)", False),
        ("(Base)", "None", False),
    ],
)
def test_an_object_that_is_no_module_says_nothing_of_whose_optimizer_it_is(
    base: str, otherwise: str, is_marked: bool
) -> None:
    """An average's state beside the optimizer's: what is a module may be what it trains."""
    source = BESIDE.format(base=base, otherwise=otherwise)
    source = source.replace("import torch\n", "import torch\nfrom elsewhere import Base, made\n", 1)
    _, after = migrate({"train.py": source})
    assert ("TODO(fsdp-migrate FSDP312)" in after["train.py"]) is is_marked
