"""Which form a site takes, and what comes after it."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.forms import Form, PassedOver, take
from tests.helpers.migrating import ROOT, migrate

SHORT, LONG, LAST = Form("short"), Form("long"), Form("last")
NEVER = Form("never", enough=False)


@pytest.mark.parametrize(
    ("forms", "passed_over", "taken", "further"),
    [
        ((SHORT, LONG), (), "short", ("long",)),
        ((NEVER, LONG, LAST), (), "long", ("last",)),
        ((SHORT, NEVER, LAST), {"short"}, "last", ()),
        ((SHORT, LONG, LAST), {"short"}, "long", ("last",)),
        ((SHORT, LONG), {"short", "long"}, "long", ()),
        ((SHORT, LONG), {"of another site"}, "short", ("long",)),
    ],
)
def test_the_first_that_is_enough_and_was_not_tried(
    forms: tuple[Form, ...], passed_over: Collection[str], taken: str, further: tuple[str, ...]
) -> None:
    found = take(forms, passed_over)
    assert (found.name, found.further) == (taken, further)


# --- forms of rules -------------------------------------------------------------------------------

LOOP = """\
from contextlib import nullcontext
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, optimizer, batches):
    model = FSDP(net)
    for number, batch in enumerate(batches):
        with nullcontext() if number % 2 else model.no_sync():
            model(batch).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
"""
HANDED_ON = LOOP.replace(
    "        with nullcontext() if number % 2 else model.no_sync():\n"
    "            model(batch).sum().backward()\n",
    "        run(nullcontext if number % 2 else model.no_sync, model, batch)\n",
)
STATE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def best_of(net, loaded, keep):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        keep(model.state_dict())
        model.load_state_dict(loaded)
"""
SCALED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def train(net, group, all_ranks):
    model = FSDP(net, process_group=group)
    scaler = ShardedGradScaler(process_group=all_ranks)
    return model, scaler
"""
WORLD = SCALED.replace("process_group=all_ranks", "").replace(", process_group=group", "")
SET = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def prepare(net, save):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    save(model)
"""

LEFT_OUT = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.shared = nn.Linear(dim, dim)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(4)])

    def forward(self, x, number):
        return self.shared(x) + self.experts[number](x)


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.vision = nn.Linear(3, dim)
        self.layer = Experts(dim)

    def forward(self, x, number, images=None):
        if images is not None:
            x = x + self.vision(images)
        return self.layer(x, number)


def train(dim, batches):
    model = FSDP(Net(dim), auto_wrap_policy=ModuleWrapPolicy({Experts}))
    for batch in batches:
        model(batch.x, batch.number, images=batch.images)
"""
ELSEWHERE = (
    LEFT_OUT[: LEFT_OUT.index("class Experts")]
    + "from nets import Net\n\n\n"
    + LEFT_OUT[LEFT_OUT.index("def train") :].replace("ModuleWrapPolicy({Experts})", "None")
)


def written(source: str, code: str, passed_over: Collection[str] = ()) -> tuple[str, list[str]]:
    """The file when forms of the sites of a rule are passed over, and the forms taken there."""
    first, _ = migrate({"train.py": source})
    places: PassedOver = {
        (ROOT / "train.py", d.site.position): passed_over for d in first.decisions if d.code == code
    }
    result, after = migrate({"train.py": source}, Options(passed_over=places))
    taken = [d.form.name for d in result.decisions if d.code == code and d.form is not None]
    return "\n".join(after.values()), taken


SETTER, CONTEXT = "set_requires_gradient_sync", "a context manager"


@pytest.mark.parametrize(
    ("source", "code", "passed_over", "holds"),
    [
        (LOOP, "FSDP402", (), r"model\.set_requires_gradient_sync\(number % 2\)"),
        (LOOP, "FSDP402", (SETTER,), r"with nullcontext\(\) if number % 2 else no_sync\(model\):"),
        (LOOP, "FSDP402", (SETTER, CONTEXT), r"batches\):\n        model\(batch\)\.sum\(\)\.ba"),
        (HANDED_ON, "FSDP402", (CONTEXT,), r"run\(nullcontext if .* else nullcontext, model"),
        (STATE, "FSDP302", ("a state that may hold the parameters",), r"keep\(deepcopy\(get_mo"),
        (
            STATE,
            "FSDP302",
            ("a state that may hold the parameters", "a copy of the state"),
            r"value\.full_tensor\(\)\.clone\(\)\s+if isinstance\(\s*value, DTensor",
        ),
        (STATE, "FSDP303", ("set_model_state_dict",), r"load_full_model\(model, loaded\)"),
        (
            STATE,
            "FSDP301",
            ("the kind of state at each call",),
            r"with state_dict_type\(model, StateDictType\.FULL_STATE_DICT\):",
        ),
        (
            SCALED,
            "FSDP405",
            ("torch.amp.GradScaler",),
            r'AgreeingGradScaler\("cuda", process_group=all_ranks\)',
        ),
        (SET, "FSDP309", ("the kind of state at each call",), r"set_state_dict_type\(model, "),
        (LEFT_OUT, "FSDP420", (), r"# TODO\(fsdp-migrate FSDP420\)"),
        (
            LEFT_OUT,
            "FSDP420",
            ("no gradients for what a step leaves out",),
            r"""
    fully_shard\(model\)
    zero_unused_gradients\(model, "vision"\)
    for module in model\.modules\(\):
        if isinstance\(module, Experts\):
            zero_unused_gradients\(module, "experts"\)
""",
        ),
    ],
)
def test_what_is_passed_over_is_not_written(
    source: str, code: str, passed_over: Collection[str], holds: str
) -> None:
    text, taken = written(source, code, passed_over)
    assert re.search(holds, text), text
    assert not set(taken) & set(passed_over)


def test_where_only_one_form_is_known_there_is_no_other() -> None:
    _, taken = written(WORLD, "FSDP405")
    assert not taken


def test_parts_of_classes_that_have_no_name_beside_the_model_have_one_form() -> None:
    nets = LEFT_OUT[: LEFT_OUT.index("def train")]
    result, _ = migrate({"train.py": ELSEWHERE, "nets.py": nets})
    (found,) = (d for d in result.decisions if d.code == "FSDP420")
    assert found.form is None


@pytest.mark.parametrize("source", [LOOP, HANDED_ON, STATE, SCALED, SET, LEFT_OUT])
def test_forms_of_other_sites_change_nothing(source: str) -> None:
    other: PassedOver = {(ROOT / "other.py", (1, 1)): [SETTER, CONTEXT, "set_model_state_dict"]}
    _, plain = migrate({"train.py": source})
    _, after = migrate({"train.py": source}, Options(passed_over=other))
    assert after == plain
