"""Parts that a model makes and nothing runs: said where an optimizer moved them with FSDP1."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate

SOURCE = """\
import bitsandbytes as bnb
import some
import torch
from some import make_optimizer
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, deep=False):
        super().__init__()
        self.body = nn.Linear(4, 4)
        {made}

    def forward(self, x):
        return {run}


def main(batches):
    model = FSDP(Net())
    optimizer = {optimizer}
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
"""
MADE = "self.fc = nn.Linear(4, 4)"
ADAMW = "torch.optim.AdamW(model.parameters())"


def said(
    made: str = MADE, run: str = "self.body(x)", optimizer: str = ADAMW, *, target: str = "2.7"
) -> str:
    source = SOURCE.format(made=made, run=run, optimizer=optimizer)
    result, after = migrate({"train.py": source}, Options(target=Version(target)))
    found = [d.message for d in result.decisions if d.code == "FSDP420"]
    assert ("set_reduce_scatter_unused_params" in after["train.py"]) is bool(found)
    return " ".join(found)


@pytest.mark.parametrize(
    "made",
    [
        MADE,
        "self.fc: nn.Linear = nn.Linear(4, 4)",
        "self.fc = nn.Parameter(torch.ones(4))",
        "self.fc = nn.Sequential(nn.Linear(4, 4), nn.ReLU())",
        "self.fc = nn.Linear(4, 4)\n        nn.init.zeros_(self.fc.bias)",
        "self.fc = nn.Linear(4, 4)\n        self.fc.weight.data.normal_(0, 0.02)",
        "self.fc = nn.Linear(4, 4)\n        torch.nn.init.xavier_uniform_(self.fc.weight)",
        "self.fc = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])",
    ],
)
def test_what_nothing_runs_is_said(made: str) -> None:
    assert said(made) == "nothing in sight runs Net.fc"


@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)",
        "torch.optim.Adam(model.parameters(), lr=0.1, **settings)",
        'torch.optim.SGD([{"params": model.parameters(), "weight_decay": 0.1}], lr=0.1)',
        "bnb.optim.AdamW8bit(model.parameters())",
        "make_optimizer(model)",
        "some.get_optimizer(model)",
    ],
)
def test_an_optimizer_that_may_move_it(optimizer: str) -> None:
    assert said(optimizer=optimizer)


@pytest.mark.parametrize(
    "optimizer",
    [
        "torch.optim.SGD(model.parameters(), lr=0.1)",
        "torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.0)",
        "torch.optim.AdamW(model.parameters(), weight_decay=0)",
        "None",
    ],
)
def test_an_optimizer_that_leaves_it_where_it_is(optimizer: str) -> None:
    assert said(optimizer=optimizer) == ""


@pytest.mark.parametrize(
    ("made", "run"),
    [
        (MADE, "self.fc(self.body(x))"),
        (MADE, "self.body(x) @ self.fc.weight"),
        (MADE, 'getattr(self, "f" + "c")(x)'),
        (MADE, "nn.Sequential(*self.children())(x)"),
        ("self.fc = nn.Linear(4, 4)\n        self.body.weight = self.fc.weight", "self.body(x)"),
        ("self.fc = nn.Linear(4, 4)\n        self.all = [self.fc]", "self.all[0](self.body(x))"),
        ("self.fc = nn.Linear(4, 4)\n        self.fc.requires_grad_(False)", "self.body(x)"),
        ("self.fc = nn.Parameter(torch.ones(4), requires_grad=False)", "self.body(x)"),
        ("self.fc = nn.Dropout()", "self.body(x)"),
        ("self.fc = nn.Linear(4, 4) if deep else None", "self.body(x)"),
    ],
)
def test_what_is_run_or_has_nothing_to_move(made: str, run: str) -> None:
    assert said(made, run) == ""


def test_torch_2_13_gives_zeros() -> None:
    assert (
        said(target="2.13")
        == "parameters that a step does not use get gradients of zero, as in FSDP1"
    )


def test_other_files_may_run_it() -> None:
    source = SOURCE.format(made=MADE, run="self.body(x)", optimizer=ADAMW)
    user = "import train\n\n\ndef run(net, x):\n    return net.fc(x)\n"
    result, _ = migrate({"train.py": source + "\n\nimport other\n", "other.py": user})
    assert "FSDP420" not in {d.code for d in result.decisions}


def test_a_unit_of_its_own_had_no_gradients_either() -> None:
    source = SOURCE.format(
        made=MADE.replace("nn.Linear", "Own"), run="self.body(x)", optimizer=ADAMW
    )
    source = source.replace(
        "FSDP(Net())", "FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Own}))"
    ).replace(
        "\n\nclass Net",
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n\n\n"
        "class Own(nn.Linear):\n    pass\n\n\nclass Net",
        1,
    )
    result, _ = migrate({"train.py": source})
    assert "FSDP420" not in {d.code for d in result.decisions}
