"""What a run has shown, of each kind, goes the whole way: it is looked at, written and trained, and
the report says what rests on it; what does not hold is taken back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import observing, parser
from fsdp_migrate.planning.seen import Facts
from fsdp_migrate.verify.compare.observed import Observed

pytestmark = pytest.mark.train

NETS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        {buffer}

    def forward(self, x):
        return torch.tanh(self.layer(x)){times}

    @torch.no_grad()
    def generate(self, x):
        return x @ self.layer.weight


class trainer:
    is_main_process_or_sharded = True
"""
PLAIN = NETS.format(buffer="self.scale = 3.0", times=" * self.scale")
BUFFERED = NETS.format(
    buffer='self.register_buffer("scale", torch.linspace(0.1, 0.7, 4))', times=" * self.scale"
)
TRAIN = """\
import importlib
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    StateDictType,
)

nets = importlib.import_module("n" + "ets")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
{made}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for batch in [torch.randn(4, 4) for _ in range(4)]:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
{after}
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def program(made: str, after: str = "") -> str:
    def indented(text: str) -> str:
        return "\n".join(f"    {line}" if line else "" for line in text.splitlines())

    return TRAIN.format(made=indented(made), after=indented(after))


@dataclass(frozen=True)
class Kind:
    """A kind of fact: a program that needs one, and what is written and said then."""

    name: str
    train: str
    said: str
    written: str
    nets: str = PLAIN
    not_written: str = "TODO"


OF_BUFFERS = program(
    'policy = MixedPrecision(buffer_dtype=torch.bfloat16)\nnet = getattr(nets, "Net")()\n'
    "model = FSDP(net, mixed_precision=policy)"
)
CASTS = ".buffers()"
KINDS = (
    Kind(
        "no buffers to cast",
        OF_BUFFERS,
        "dropped (seen in the run: there were no float buffers)",
        "fully_shard(net",
        not_written=CASTS,
    ),
    Kind(
        "the class that is wrapped",
        "import nets as known\n"
        + program(
            'net = getattr(nets, "Other")() if os.environ.get("OTHER") else known.Net()\n'
            "model = FSDP(net)",
            "model(batch)\nprint(model.module.generate(batch).shape)",
        ),
        "its model has it registered (seen in the run: Net is what is wrapped)",
        'register_fsdp_forward_method(net, "generate")',
    ),
    Kind(
        "a flag that FSDP2 has not",
        program(
            'keep = json.loads(os.environ.get("KEEP", "false"))\n'
            "policy = MixedPrecision(reduce_dtype=torch.float32, keep_low_precision_grads=keep)\n"
            'model = FSDP(getattr(nets, "Net")(), mixed_precision=policy)'
        ),
        "seen in the run: keep_low_precision_grads was False",
        "MixedPrecisionPolicy(",
        not_written="keep_low_precision_grads=",
    ),
    Kind(
        "every rank asks for a state",
        program(
            'model = FSDP(getattr(nets, "Net")())\n'
            "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)",
            "def save():\n"
            '    torch.save(model.state_dict(), f"{dist.get_rank()}.pt")\n\n'
            'if getattr(nets, "trainer").is_main_process_or_sharded:\n    save()',
        ),
        "seen in the run: every rank comes by, under",
        "get_model_state_dict(",
    ),
)


@pytest.fixture
def migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs ``migrate`` on a program: the exit code, the new program, and the answer."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    monkeypatch.chdir(project)
    monkeypatch.setenv("FSDP_MIGRATE_STATE", str(tmp_path / "state"))

    def run(train: str, nets: str) -> tuple[int, str, dict[str, Any]]:
        (project / "train.py").write_text(train)
        (project / "nets.py").write_text(nets)
        code = parser.run(["migrate", "train.py", "-o", "answer.json"])
        return code, Path("train.py").read_text(), json.loads(Path("answer.json").read_text())

    return run


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_each_kind_of_fact_is_trained(kind: Kind, migrate: Callable[..., Any]) -> None:
    code, after, said = migrate(kind.train, kind.nets)
    assert code == 0, said
    assert said["same_training"]
    assert len(said["attempts"]) == 1
    assert any(kind.said in each for each in said["seen"]), said["seen"]
    assert kind.written in after
    assert kind.not_written not in after


def test_buffers_that_were_there_are_cast(migrate: Callable[..., Any]) -> None:
    code, after, said = migrate(OF_BUFFERS, BUFFERED)
    assert code == 0
    assert CASTS in after
    assert "seen" not in said


def test_what_the_run_showed_and_does_not_hold_is_taken_back(
    migrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = observing.facts

    def wrong(runs: Sequence[Observed], tree: Path) -> Facts:
        found = right(runs, tree)
        without = {
            at: dataclasses.replace(each, buffers=frozenset())
            for at, each in found.constructions.items()
        }
        return dataclasses.replace(found, constructions=without)

    monkeypatch.setattr(observing, "facts", wrong)
    code, after, said = migrate(OF_BUFFERS, BUFFERED)
    assert code == 0, said
    assert CASTS in after
    assert [attempt["passes"] for attempt in said["attempts"]] == [False, True]
    (other,) = said["other_forms"]
    line = OF_BUFFERS[: OF_BUFFERS.index("model = FSDP")].count("\n") + 1
    assert other["what"] == f"not as the run showed it at train.py:{line}"
    assert other["evidence"].startswith("as it is written first, different training:")
    assert "seen" not in said
