"""A mistake of a rule, in what is written, costs its site and not the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import engine
from fsdp_migrate.migration.defects import Defect, blamed
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.edits import ReplaceExpression, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.planning.rule import Registry
from tests.helpers.migrating import REGISTRY, migrate

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

one = FSDP(nn.Linear(4, 4), use_orig_params=True)
two = FSDP(nn.Linear(4, 4), use_orig_params=True)


def clip():
    one.clip_grad_norm_(1.0)


def clip_other():
    two.clip_grad_norm_(2.0)
"""
PARTIAL, WHOLE = Options(partial=True), Options()


def with_mistake(new: str, *lines: int) -> Registry:
    """The rules, of which that of ``clip_grad_norm_`` writes ``new`` at sites on these lines."""
    right = REGISTRY.rules["FSDP401"]

    def decide(site: Site, study: Any) -> Decision:
        decision = right.decide(site, study)
        if site.position[0] not in lines:
            return decision
        edits = (ReplaceExpression(site.module, site.call, code("{new}", new=new)),)
        return replace(decision, edits=edits)

    wrong = replace(right, module=cast(Any, SimpleNamespace(decide=decide)))
    return Registry({**REGISTRY.rules, "FSDP401": wrong})


def run(new: str, *lines: int, options: Options = PARTIAL) -> tuple[Result, str]:
    result, after = migrate({"example.py": PROGRAM}, options, with_mistake(new, *lines))
    return result, after["example.py"]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        pytest.param("clip(nobody)", "uses names that nothing binds: nobody", id="an unbound name"),
        pytest.param("clip(", "", id="no Python"),
    ],
)
def test_the_site_is_left_and_the_rest_migrated(new: str, why: str) -> None:
    result, after = run(new, 9)
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert [d.site.position[0] for d in left] == [9]
    assert f"what FSDP401 writes here does not pass the check: {why}" in (
        left[0].message.replace("the result ", "")
    )
    assert [p.ours for p in result.problems] == [True]
    assert "raise NotImplementedError" in after.split("def clip():")[1].split("one.clip")[0]
    assert "one = fully_shard(" in after
    assert "clip_grad_norm_(two.parameters(), 2.0)" in after


def test_what_a_second_run_would_find_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the site is rewritten, a second run finds it again."""
    right = engine.unsettled

    def found(project: Project, decisions: Sequence[Decision], *rest: Any) -> Any:
        failed, unused = right(project, decisions, *rest)
        for d in decisions:
            if d.code == "FSDP401" and d.outcome is not Outcome.LEFT:
                failed[d.site.module] = Defect("left behind", d)
        return failed, unused

    monkeypatch.setattr(engine, "unsettled", found)
    result, after = run("", options=PARTIAL)
    assert result.count(Outcome.LEFT) == after.count("raise NotImplementedError") == 2
    assert "one = fully_shard(" in after


def test_without_guards_its_model_is_held_back_and_no_other() -> None:
    result, after = run("clip(nobody)", 9, options=WHOLE)
    assert "one = FSDP(nn.Linear(4, 4), use_orig_params=True)" in after
    assert "two = fully_shard(" in after
    assert "clip_grad_norm_(two.parameters(), 2.0)" in after
    assert [p.line for p in result.problems] == [9]


def test_several_mistakes_cost_their_sites() -> None:
    result, after = run("clip(nobody)", 9, 13)
    assert result.count(Outcome.LEFT) == 2
    assert after.count("raise NotImplementedError") == 2
    assert "one = fully_shard(" in after


def test_where_no_single_site_is_to_blame_the_file_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_migrate.migration.defects.MOST", 0)
    result, after = run("clip(nobody)", 9)
    assert after == PROGRAM
    assert not result.changes
    assert [p.line for p in result.problems] == [0]


def test_rules_without_mistakes_are_asked_once() -> None:
    result, _ = migrate({"example.py": PROGRAM}, PARTIAL)
    assert not result.problems
    assert not result.count(Outcome.LEFT)


def test_what_is_left_behind_in_a_function_costs_what_is_written_there() -> None:
    """Nothing in the file has the construct that a second run would find, nor its rule."""
    _, decisions = decided()
    clip, other = (d for d in decisions if d.code == "FSDP401")
    strange = Construct.parse("FlatParameter._local_shard")
    found = replace(other, site=replace(other.site, construct=strange), code="FSDP499")
    assert blamed(clip.site.module, Defect("left behind", found), decisions, never) == [other]
    assert blamed(clip.site.module, Defect("wrong"), decisions, never) == []


def decided() -> tuple[Result, list[Decision]]:
    result, _ = migrate({"example.py": PROGRAM}, PARTIAL)
    return result, result.decisions


def never(decisions: Sequence[Decision]) -> bool:
    return False


OF_AN_OPTIMIZER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, fsdp, rank):
    if fsdp:
        model = FSDP(net, use_orig_params=True)
    else:
        model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(torch.load("optimizer.pt"))
    if rank == 0:
        torch.save(optimizer.state_dict(), "optimizer.pt")
"""


def test_an_optimizer_is_loaded_as_it_is_saved() -> None:
    """Where the code that saves a whole state fails its check, no whole state is loaded; and what
    is left stops the program for FSDP's models alone."""
    _, right = migrate({"example.py": OF_AN_OPTIMIZER}, PARTIAL)
    assert "get_optimizer_state_dict(" in right["example.py"]
    assert "set_optimizer_state_dict(" in right["example.py"]
    rule = REGISTRY.rules["FSDP312"]

    def decide(site: Site, study: Any) -> Decision:
        decision = rule.decide(site, study)
        if "load" in str(site.construct):
            return decision
        edits = (ReplaceExpression(site.module, site.call, code("gather(nobody)")),)
        return replace(decision, edits=edits)

    wrong = replace(rule, module=cast(Any, SimpleNamespace(decide=decide)))
    registry = Registry({**REGISTRY.rules, "FSDP312": wrong})
    _, files = migrate({"example.py": OF_AN_OPTIMIZER}, PARTIAL, registry)
    after = files["example.py"]
    assert "set_optimizer_state_dict(" not in after
    assert "optimizer.load_state_dict(own_optimizer_state(optimizer, torch.load(" in after
    assert "torch.save(optimizer.state_dict()" in after
    guard, saved = after.split("raise NotImplementedError(")
    assert guard.rstrip().endswith("if isinstance(model, FSDPModule):")
    assert "optimizer.state_dict()" in saved
