"""Every way FSDP1 had to give and take a state, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, rewritten, worst

HEAD = """\
import copy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    LocalStateDictConfig,
    OptimStateKeyType,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)


def build(net):
    return FSDP(net)


"""
FULL = "StateDictType.FULL_STATE_DICT"
SHARDED = "StateDictType.SHARDED_STATE_DICT"
WHOLE = "StateDictOptions(full_state_dict=True)"
FROM_FIRST = "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True"
ON_CPU = "StateDictOptions(full_state_dict=True, cpu_offload=True)"


@dataclass(frozen=True)
class Row:
    """The body of a function that has a ``net`` and an ``optim``, and what is found in its place.

    ``after``: pieces of the code, in order, blanks aside. ``gone``: what must not be left.
    """

    title: str
    before: str
    after: tuple[str, ...] = ()
    outcome: Outcome = Outcome.REWRITTEN
    gone: tuple[str, ...] = ("FSDP.", "StateDictType")

    def __str__(self) -> str:
        return self.title


def within(kind: str, *configs: str, body: str) -> str:
    return f"with FSDP.state_dict_type({', '.join(('model', kind, *configs))}):\n    {body}"


def full(*flags: str) -> str:
    return f"FullStateDictConfig({', '.join(f'{flag}=True' for flag in flags)})"


MODEL = (
    Row(
        "FULL on the CPU of rank 0",
        within(FULL, full("offload_to_cpu", "rank0_only"), body="state = model.state_dict()"),
        (f"state = get_model_state_dict(model, options={ON_CPU})",),
    ),
    Row(
        "FULL on every device",
        within(FULL, full(), body="state = model.state_dict()"),
        (f"state = get_model_state_dict(model, options={WHOLE})",),
    ),
    Row(
        "no context",
        "state = model.state_dict()",
        (f"state = get_model_state_dict(model, options={WHOLE})",),
    ),
    Row(
        "FULL on every CPU",
        within(FULL, full("offload_to_cpu"), body="state = model.state_dict()"),
        ("state = whole_on_cpu(get_model_state_dict(model))",),
    ),
    Row(
        "FULL on the device of rank 0",
        within(FULL, full("rank0_only"), body="state = model.state_dict()"),
        (f"state = get_model_state_dict(model, options={ON_CPU})",),
    ),
    Row(
        "FULL on every CPU, read by rank 0",
        within(FULL, full("offload_to_cpu"), body="state = model.state_dict()")
        + "\nif dist.get_rank() == 0:\n    torch.save(state, 'model.pt')",
        (f"state = get_model_state_dict(model, options={ON_CPU})",),
    ),
    Row(
        "SHARDED",
        within(SHARDED, body="dcp.save({'model': model.state_dict()})"),
        ("dcp.save({'model': get_model_state_dict(model)})",),
    ),
    Row(
        "SHARDED on the CPU",
        within(
            SHARDED,
            "ShardedStateDictConfig(offload_to_cpu=True)",
            body="dcp.save({'model': model.state_dict()})",
        ),
        ("get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))",),
    ),
    Row(
        "LOCAL",
        within("StateDictType.LOCAL_STATE_DICT", body="state = model.state_dict()"),
        ("# TODO(fsdp-migrate FSDP301)", "state = get_model_state_dict(model)"),
        Outcome.REVIEW,
    ),
    Row(
        "set once, asked for later",
        f"FSDP.set_state_dict_type(model, {FULL}, {full('offload_to_cpu', 'rank0_only')})\n"
        "state = model.state_dict()",
        (f"state = get_model_state_dict(model, options={ON_CPU})",),
        gone=("FSDP.", "set_state_dict_type"),
    ),
    Row(
        "loading a whole state",
        within(FULL, body="model.load_state_dict(torch.load('model.pt'))"),
        (f"set_model_state_dict(model, torch.load('model.pt'), options={FROM_FIRST}",),
    ),
    Row(
        "loading a whole state, not strictly",
        within(FULL, body="model.load_state_dict(torch.load('model.pt'), strict=False)"),
        (
            "set_model_state_dict(model, torch.load('model.pt'), "
            "options=StateDictOptions(full_state_dict=True, strict=False",
        ),
    ),
    Row(
        "what was missing is asked",
        "missing, unexpected = model.load_state_dict(torch.load('model.pt'), strict=False)",
        ("missing, unexpected = load_full_model(model, torch.load('model.pt'), strict=False)",),
    ),
    Row(
        "loading a state that is read again",
        "model.load_state_dict(saved)\nprint(saved)",
        (f"set_model_state_dict(model, dict(saved), options={FROM_FIRST}",),
    ),
    Row(
        "loading a state that nothing else reads",
        "file = torch.load('model.pt')\nmodel.load_state_dict(file['model'])\nprint(file['step'])",
        (f"set_model_state_dict(model, file['model'], options={FROM_FIRST}",),
    ),
    Row(
        "loading after an evaluation",
        "evaluate(model)\nmodel.load_state_dict(torch.load('model.pt'))",
        ("reshard_parameters(model)", "set_model_state_dict(model, torch.load('model.pt')"),
    ),
    Row(
        "loading shards",
        within(
            SHARDED,
            body="state = {'model': model.state_dict()}\n"
            "    dcp.load(state)\n"
            "    model.load_state_dict(state['model'])",
        ),
        ("'model': get_model_state_dict(model)", "set_model_state_dict(model, state['model'])"),
    ),
    Row(
        "loading a whole state without a context",
        "model.load_state_dict(torch.load('model.pt'))",
        (f"set_model_state_dict(model, torch.load('model.pt'), options={FROM_FIRST}",),
    ),
    Row(
        "loading by assignment",
        "model.load_state_dict(torch.load('model.pt'), assign=True)",
        outcome=Outcome.LEFT,
        gone=(),
    ),
    Row(
        "shards that are kept",
        "for step in range(9):\n"
        "    train_step(model)\n"
        f"    with FSDP.state_dict_type(model, {SHARDED}):\n"
        "        best = model.state_dict()\n"
        "use(best)",
        ("best = copy.deepcopy(get_model_state_dict(model))",),
    ),
    Row(
        "a whole state that is kept",
        "best = model.state_dict()\ntrain(model)\nmodel.load_state_dict(best)",
        (
            f"best = copy.deepcopy(get_model_state_dict(model, options={WHOLE}))",
            f"set_model_state_dict(model, best, options={FROM_FIRST}",
        ),
    ),
    Row(
        "a whole state that is saved before the next step",
        "for step in range(9):\n"
        "    train_step(model)\n"
        "    state = model.state_dict()\n"
        "    torch.save(state, 'model.pt')",
        (f"state = get_model_state_dict(model, options={WHOLE})",),
    ),
    Row(
        "saved by rank 0",
        "if dist.get_rank() == 0:\n    torch.save(model.state_dict(), 'model.pt')",
        (
            f"state = get_model_state_dict(model, options={ON_CPU})",
            "if dist.get_rank() == 0:",
            "torch.save(state, 'model.pt')",
        ),
    ),
    Row(
        "saved by a first rank of which nothing is known",
        "if local_rank == 0:\n    torch.save(model.state_dict(), 'model.pt')",
        (
            f"state = get_model_state_dict(model, options={WHOLE})",
            "if local_rank == 0:",
            "torch.save(state, 'model.pt')",
        ),
    ),
    Row(
        "handed on by rank 0",
        "return model.state_dict() if is_main_process() else None",
        (
            f"state = get_model_state_dict(model, options={WHOLE})",
            "return state if is_main_process() else None",
        ),
    ),
    Row(
        "where every rank is wanted",
        "if rank == 0 or is_sharded:\n    state = model.state_dict()",
        ("if rank == 0 or is_sharded:", f"state = get_model_state_dict(model, options={WHOLE})"),
    ),
    Row(
        "by all ranks but the first",
        "if rank == 0:\n    pass\nelse:\n    torch.save(model.state_dict(), 'model.pt')",
        (f"state = get_model_state_dict(model, options={WHOLE})", "if rank == 0:"),
    ),
    Row(
        "in another branch than rank 0's",
        "if a and rank == 0:\n    pass\nelif b:\n    torch.save(model.state_dict(), 'model.pt')",
        ("elif b:", f"torch.save(get_model_state_dict(model, options={WHOLE}), 'model.pt')"),
    ),
    Row(
        "on every rank, to one path",
        "torch.save(model.state_dict(), 'model.pt')",
        (f"torch.save(get_model_state_dict(model, options={WHOLE}), 'model.pt')",),
    ),
    Row(
        "with arguments",
        "state = model.state_dict(prefix='net.')",
        outcome=Outcome.LEFT,
        gone=(),
    ),
)

OPTIMIZER = (
    Row(
        "full_optim_state_dict",
        "state = FSDP.full_optim_state_dict(model, optim)",
        (f"state = get_optimizer_state_dict(model, optim, options={ON_CPU})",),
    ),
    Row(
        "full_optim_state_dict on every rank",
        "state = FSDP.full_optim_state_dict(model, optim, rank0_only=False)",
        ("state = whole_on_cpu(get_optimizer_state_dict(model, optim))",),
    ),
    Row(
        "sharded_optim_state_dict",
        "state = FSDP.sharded_optim_state_dict(model, optim)",
        ("state = get_optimizer_state_dict(model, optim)",),
    ),
    Row(
        "optim_state_dict",
        "state = FSDP.optim_state_dict(model, optim)",
        ("state = whole_on_cpu(get_optimizer_state_dict(model, optim))",),
    ),
    Row(
        "optim_state_dict as configured",
        within(
            FULL,
            full("offload_to_cpu", "rank0_only"),
            "FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)",
            body="state = FSDP.optim_state_dict(model, optim)",
        ),
        (f"state = get_optimizer_state_dict(model, optim, options={ON_CPU})",),
    ),
    Row(
        "optim_state_dict, sharded",
        within(SHARDED, body="dcp.save({'optim': FSDP.optim_state_dict(model, optim)})"),
        ("dcp.save({'optim': get_optimizer_state_dict(model, optim)})",),
    ),
    Row(
        "before the first step",
        "torch.save(FSDP.full_optim_state_dict(model, optim), 'first.pt')\ntrain(model)",
        (
            f"get_optimizer_state_dict(model, optim, options={ON_CPU}) "
            "if optim.state else optim.state_dict()",
        ),
    ),
    Row(
        "before a function that steps",
        "def fit(data):\n    optim.step()\n"
        "torch.save(FSDP.full_optim_state_dict(model, optim), 'first.pt')\nfit(3)",
        (
            f"get_optimizer_state_dict(model, optim, options={ON_CPU}) "
            "if optim.state else optim.state_dict()",
        ),
    ),
    Row(
        "behind a function that steps",
        "def fit(data):\n    optim.step()\n"
        "fit(3)\ntorch.save(FSDP.full_optim_state_dict(model, optim), 'first.pt')\nfit(4)",
        (f"torch.save(get_optimizer_state_dict(model, optim, options={ON_CPU}), 'first.pt')",),
    ),
    Row(
        "an optimizer's state that is kept",
        "train(model)\nstate = FSDP.sharded_optim_state_dict(model, optim)\n"
        "train(model)\nprint(state)",
        ("state = copy.deepcopy(get_optimizer_state_dict(model, optim))",),
    ),
    Row(
        "after an evaluation",
        "evaluate(model)\nstate = FSDP.sharded_optim_state_dict(model, optim)",
        ("reshard_parameters(model)", "state = get_optimizer_state_dict(model, optim)"),
    ),
    Row(
        "optim_state_dict of the optimizer's own state",
        "state = FSDP.optim_state_dict(model, optim, optim.state_dict())",
        ("state = whole_on_cpu(get_optimizer_state_dict(model, optim))",),
    ),
    Row(
        "optim_state_dict of none",
        "state = FSDP.optim_state_dict(model, optim, optim_state_dict=None)",
        ("state = whole_on_cpu(get_optimizer_state_dict(model, optim))",),
    ),
    Row(
        "optim_state_dict of another state",
        "state = FSDP.optim_state_dict(model, optim, other.state_dict())",
        outcome=Outcome.LEFT,
        gone=(),
    ),
    Row(
        "optim_state_dict over a group",
        "state = FSDP.optim_state_dict(model, optim, group=group)",
        outcome=Outcome.LEFT,
        gone=(),
    ),
    Row(
        "optim_state_dict by rank 0",
        "if rank == 0:\n    torch.save(FSDP.optim_state_dict(model, optim), 'optim.pt')",
        (
            "optimizer_state = whole_on_cpu(get_optimizer_state_dict(model, optim))",
            "if rank == 0:",
            "torch.save(optimizer_state, 'optim.pt')",
        ),
    ),
    Row(
        "optim_state_dict_to_load",
        "flat = FSDP.optim_state_dict_to_load(model, optim, saved)\noptim.load_state_dict(flat)",
        (f"set_optimizer_state_dict(model, optim, separate_steps(saved), options={WHOLE})",),
        gone=("FSDP.", "flat"),
    ),
    Row(
        "optim_state_dict_to_load in the old order",
        "flat = FSDP.optim_state_dict_to_load(saved, model, optim)\noptim.load_state_dict(flat)",
        (f"set_optimizer_state_dict(model, optim, separate_steps(saved), options={WHOLE})",),
        gone=("FSDP.", "flat"),
    ),
    Row(
        "scatter_full_optim_state_dict",
        "flat = FSDP.scatter_full_optim_state_dict(saved, model, optim=optim)\n"
        "optim.load_state_dict(flat)",
        (
            "set_optimizer_state_dict(model, optim, separate_steps(saved or {}), "
            "options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True",
        ),
    ),
    Row(
        "of SGD with momentum, which counts no steps",
        "optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
        "optim.load_state_dict(FSDP.shard_full_optim_state_dict(saved, model))",
        (f"set_optimizer_state_dict(model, optim, saved, options={WHOLE})",),
    ),
    Row(
        "of SGD without momentum, which has no state",
        "optim = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "optim.load_state_dict(FSDP.shard_full_optim_state_dict(saved, model))",
        ("set_optimizer_state_dict(model, optim, saved)",),
    ),
    Row(
        "scattered to SGD without momentum",
        "optim = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "optim.load_state_dict(FSDP.scatter_full_optim_state_dict(saved, model))",
        ("optim.load_state_dict(optimizer_state_to_load(model, optim, saved, from_rank0=True))",),
    ),
    Row(
        "of an optimizer that may have no state",
        "optim = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "if adam:\n    optim = torch.optim.Adam(model.parameters())\n"
        "optim.load_state_dict(FSDP.shard_full_optim_state_dict(saved, model))",
        (
            "set_optimizer_state_dict(model, optim, separate_steps(saved), "
            'options=StateDictOptions(full_state_dict=bool(saved["state"])',
        ),
    ),
    Row(
        "of SGD whose momentum is a setting",
        "optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=settings.momentum)\n"
        "optim.load_state_dict(FSDP.shard_full_optim_state_dict(saved, model))",
        (
            "set_optimizer_state_dict(model, optim, saved, "
            'options=StateDictOptions(full_state_dict=bool(saved["state"])',
        ),
    ),
    Row(
        "shard_full_optim_state_dict without the optimizer",
        "optim.load_state_dict(FSDP.shard_full_optim_state_dict(saved, model))",
        (f"set_optimizer_state_dict(model, optim, separate_steps(saved), options={WHOLE})",),
    ),
    Row(
        "in whose place another may be loaded",
        "if plain:\n    state = saved\n"
        "else:\n    state = FSDP.optim_state_dict_to_load(model, optim, saved)\n"
        "optim.load_state_dict(state)",
        (
            "if plain:\n    state = saved\n"
            "else:\n    state = optimizer_state_to_load(model, optim, saved)\n"
            "optim.load_state_dict(state)",
        ),
    ),
    Row(
        "flatten_sharded_optim_state_dict",
        "flat = FSDP.flatten_sharded_optim_state_dict(saved, model, optim)\n"
        "optim.load_state_dict(flat)",
        ("set_optimizer_state_dict(model, optim, saved)",),
    ),
    Row(
        "rekey_optim_state_dict",
        "saved = FSDP.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_NAME, model)",
        ("saved = FSDP.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_NAME, model)",),
        Outcome.LEFT,
        gone=(),
    ),
    Row(
        "the optimizer's own methods",
        "state = optim.state_dict()\noptim.load_state_dict(state)",
        ("state = optim.state_dict()", "optim.load_state_dict(state)"),
    ),
)


@pytest.mark.parametrize("row", [*MODEL, *OPTIMIZER], ids=str)
def test_a_state(row: Row) -> None:
    body = "\n".join(f"    {line}" for line in row.before.splitlines())
    source = f"{HEAD}def work(net, optim, saved):\n    model = build(net)\n{body}\n"
    result, after = migrate({"work.py": source})
    assert not result.problems
    assert worst(result) is row.outcome, [(d.code, d.outcome, d.message) for d in result.decisions]
    text = after["work.py"][after["work.py"].index("def work") :]
    packed = "".join(text.split()).replace(",)", ")")
    place = 0
    for piece in row.after:
        wanted = "".join(piece.split()).replace(",)", ")")
        assert wanted in packed[place:], text
        place = packed.index(wanted, place) + len(wanted)
    assert not [name for name in row.gone if name in text], text
    again, unchanged = migrate({**after})
    assert unchanged["work.py"] == after["work.py"]
    assert not again.changes


@pytest.mark.parametrize(
    ("models", "given", "is_moved"),
    [
        ('model = FSDP(net, device_id=torch.device("cpu"))', "save", False),
        ("device = torch.device('cpu')\n    model = FSDP(net, device_id=device)", "save", False),
        ('model = FSDP(net, device_id=torch.device("cpu"))', "keep", True),
        ('model = FSDP(net, device_id=torch.device("cuda"))', "save", True),
        ("model = FSDP(net, device_id=where)", "save", True),
        ("model = FSDP(net)", "save", True),
        (
            'model = FSDP(net, device_id=torch.device("cpu"), ignored_modules=[net.head])',
            "save",
            True,
        ),
        ('model = FSDP(net, device_id=torch.device("cpu" if where else "cuda"))', "save", True),
    ],
)
def test_states_of_optimizers_are_moved_to_the_cpu_unless_they_are_there(
    models: str, given: str, is_moved: bool
) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        f"def train(net, batches, where, save, keep):\n    {models}\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    for batch in batches:\n        model(batch).sum().backward()\n"
        f"        optimizer.step()\n    {given}(FSDP.optim_state_dict(model, optimizer))\n"
    )
    text = rewritten(source)
    assert "get_optimizer_state_dict(" in text
    assert ("whole_on_cpu(" in text) is is_moved
