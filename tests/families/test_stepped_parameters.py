"""What an optimizer of the project's own computes of parameters that its own functions hand out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.helpers.migrating import migrate

OPTIMIZER = """\
import torch


def flat(groups):
    return [(group, p) for group in groups for p in group["params"]]


class Scaled(torch.optim.Optimizer):
    def pairs(self):
        pairs = flat(self.param_groups)
        yield pairs[0]
        for group, p in pairs[1:]:
            yield group, p

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in {pairs}:
            {body}
"""
NORM = 'p.data.add_(p.grad * torch.norm(p.data), alpha=-group["lr"])'
MAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from scaled import Scaled

model = {model}
optimizer = Scaled(model.parameters(), {{}})
"""
SHARDED = "FSDP(net, use_orig_params=True)"
MARK = "TODO(fsdp-migrate FSDP408)"


def written(pairs: str, body: str, model: str = SHARDED, extra: str = "") -> str:
    files = {
        "scaled.py": OPTIMIZER.format(pairs=pairs, body=body),
        "train.py": MAIN.format(model=model) + extra,
    }
    _, after = migrate(files)
    return after["scaled.py"]


@pytest.mark.parametrize(
    "pairs",
    ["self.pairs()", "flat(self.param_groups)", "list(self.pairs())"],
)
def test_norms_of_pieces_are_marked(pairs: str) -> None:
    assert MARK in written(pairs, NORM)


@pytest.mark.parametrize(
    "body",
    [
        'p.data.add_(p.grad, alpha=-group["lr"] * (0.5 if p.ndim > 1 else 1.0))',
        "p.data.add_(p.grad / p.grad.std())",
    ],
)
def test_shapes_and_statistics_are_marked(body: str) -> None:
    assert MARK in written("self.pairs()", body)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        ("p.data.add_(p.grad, alpha=-0.1)", SHARDED),  # element by element
        ("p.data.add_(p.grad * torch.norm(group['scale']))", SHARDED),  # of something else
        (NORM, "net"),
    ],
)
def test_what_does_not_depend_on_pieces_is_not(body: str, model: str) -> None:
    extra = "" if model == SHARDED else "other = FSDP(another)\n"
    assert MARK not in written("self.pairs()", body, model, extra)


def test_a_file_of_optimizers_is_read(tmp_path: Path) -> None:
    """It mentions neither FSDP nor a model."""
    (tmp_path / "scaled.py").write_text(
        OPTIMIZER.format(pairs="flat(self.param_groups)", body=NORM)
    )
    (tmp_path / "train.py").write_text(MAIN.format(model=SHARDED))
    changed = session.run([tmp_path]).result.changes
    assert MARK.encode() in changed[tmp_path / "scaled.py"]
