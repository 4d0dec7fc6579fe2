"""What the look-alike trains, with torch's FSDP and judged by ``verify``; see docs/systems.md."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest

import fsdp_migrate.verify
from fsdp_migrate.verify.compare.load import load
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.training.programs import Launcher, Pair, Run, pair

pytestmark = pytest.mark.train

RANKS = 8
LONGEST = 120.0  # seconds for eight ranks, both versions and the twin, on two cores
COLLECTIVES = {
    *("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "full_tensor"),
    *("broadcast_object_list", "gather", "gather_object", "redistribute", "reduce_scatter_tensor"),
}
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair("systems/shards", tmp_path_factory.mktemp("shards"))


def verified(both: Pair, server: WarmServer, *args: str, **changes: Any) -> Report:
    trees = {"before": both.before.parent, "after": both.after.parent}
    settings = {**trees, "script": "train.py", "args": args, "nproc": RANKS, "timeout": 60.0}
    return verify(Plan(**{**settings, **changes}), server=server)


def whole(run: Run) -> dict[str, Any]:
    """The parameters that a run ended with, by name."""
    [model] = run.models[0]
    return dict(model["parameters"])


@pytest.mark.parametrize("data", ["same", "split"])
def test_eight_ranks_with_uneven_and_empty_shards_pass_in_time(
    data: str, both: Pair, server: WarmServer, tmp_path: Path
) -> None:
    report = verified(both, server, "--data", data, keep=tmp_path)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert report.seconds < LONGEST
    [records] = {path.parent for path in tmp_path.rglob("after/**/rank-7.jsonl")}
    counts = [p.held for p in load(records).parameters.values()]
    assert any(0 in held for held in counts)
    for parameter in load(records).parameters.values():
        rows, *others = parameter.shape
        assert sum(parameter.held) == parameter.elements
        assert max(parameter.held) <= math.ceil(rows / RANKS) * math.prod(others)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("data", ["same", "split"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_parameter_is_that_of_one_rank(
    ranks: int, data: str, optimizer: str, both: Pair, launcher: Launcher
) -> None:
    args = ("--data", data, "--optimizer", optimizer)
    alone, many = (launcher.script(both.after, *args, ranks=n) for n in (1, ranks))
    expected, found = whole(alone), whole(many)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert (value - found[name]).abs().max() <= 1e-6, name


def test_a_hang_is_a_failure_with_each_ranks_place(
    both: Pair, server: WarmServer, tmp_path: Path
) -> None:
    """The last rank, whose shards are empty, is not asked for the norm of the gradients."""
    source = both.after.read_text(encoding="utf-8")
    assert source.count(CLIP) == 1
    hanging = tmp_path / "train.py"
    hanging.write_text(source.replace(CLIP, f"rank < world - 1 and {CLIP}"), encoding="utf-8")
    report = verified(both, server, after=tmp_path, timeout=15.0)
    assert report.verdict is Verdict.AFTER_HUNG, text.render(report)
    ranks = report.endings["after"].ranks
    assert [trace.rank for trace in ranks] == list(range(RANKS))
    assert len({trace.last for trace in ranks}) > 1
    assert all(any(f.startswith("train.py:") for f in trace.stack) for trace in ranks)


def test_verify_waits_for_no_other_rank() -> None:
    """Ranks write down what they hold, and it is put together later: nothing of verify's own is a
    collective, which one rank alone could come by."""
    package = Path(fsdp_migrate.verify.__file__).parent
    for path in (package / "capture", package / "inject"):
        for file in path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    assert node.func.attr not in COLLECTIVES, f"{file}:{node.lineno}"
