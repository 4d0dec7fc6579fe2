"""Places that use FSDP1 are seen when the original runs, and held against the sites of `check`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli.study import study
from fsdp_migrate.verify.compare.blame import point
from fsdp_migrate.verify.compare.gate import Question
from fsdp_migrate.verify.compare.observed import Made, Observed, Span, Use, read, together
from fsdp_migrate.verify.compare.sites import account
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import RENDERERS, text
from fsdp_migrate.verify.report.against_sites import against_sites
from fsdp_migrate.verify.report.model import Report, Verdict

from .programs import judged, trees

# --- places and sites ----------------------------------------------------------------------------

SOURCE = """\
import contextlib
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def shard(net):
    return FSDP(
        net,
        use_orig_params=True,
    )


def train(model, hidden):
    with (
        contextlib.nullcontext(),
        model.no_sync(),
    ):
        norms = [each.clip_grad_norm_(1.0) for each in (model,)]
    hidden.clip_grad_norm_(1.0); model.clip_grad_norm_(2.0)
    return norms


net = shard(torch.nn.Linear(2, 2))
train(net, object())
"""


def use(what: str, of: str, *, source: str = SOURCE, **more: Any) -> Use:
    """The use at the only place of ``source`` that reads ``of``."""
    assert source.count(of) == 1, of
    start = source.index(of)
    ends = start, start + len(of)
    rows = [source.count("\n", 0, at) + 1 for at in ends]
    columns = [at - (source.rfind("\n", 0, at) + 1) for at in ends]
    return Use("train.py", Span(rows[0], columns[0], rows[1], columns[1]), what, **more)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    return tmp_path


KNOWN = (
    use("FullyShardedDataParallel", "FSDP(\n        net,\n        use_orig_params=True,\n    )"),
    use("no_sync", "model.no_sync"),
    use("clip_grad_norm_", "each.clip_grad_norm_"),
    use("clip_grad_norm_", "model.clip_grad_norm_(2.0)"),
)


@pytest.mark.parametrize("known", KNOWN, ids=lambda u: f"{u.what} in line {u.span.line}")
def test_a_place_is_known_by_the_site_that_it_stands_in(known: Use, tree: Path) -> None:
    assert not account(Observed((known,)), study(tree)).unseen


@pytest.mark.parametrize(
    "hidden",
    [
        use("module", "torch.nn.Linear(2, 2)"),
        use("no_sync", "contextlib.nullcontext()"),  # beside a site in its statement, about another
        use("module", "return norms"),
    ],
    ids=lambda u: f"{u.what} in line {u.span.line}",
)
def test_a_place_that_is_no_site_is_told(hidden: Use, tree: Path) -> None:
    if hidden.what == "no_sync":
        hidden = dataclasses.replace(hidden, what="check_is_root")
    found = account(Observed((*KNOWN, hidden)), study(tree))
    assert found.unseen == (hidden,)
    assert found.says == (
        f"the original used FSDP1 at 5 places, 1 not seen by the rewriter: {hidden}"
    )


CLASSES = """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


class Saving(FSDP):
    def __init__(self, module):
        super().__init__(module, use_orig_params=True)

    def state_dict(self):
        return super().state_dict()


class Plain:
    def state_dict(self):
        return super().state_dict


def make(net):
    shard = partial(FSDP, sharding_strategy=ShardingStrategy.FULL_SHARD)
    return shard(net.first), Saving(net.second)
"""


def test_what_a_class_or_a_partial_makes_of_fsdp1_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CLASSES)
    known = [
        use("FullyShardedDataParallel", of, source=CLASSES)
        for of in ("super().__init__(module, use_orig_params=True)", "Saving(net.second)")
    ]
    known += [use("state_dict", "super().state_dict()", source=CLASSES)]
    hidden = use("state_dict", "super().state_dict\n", source=CLASSES)
    assert account(Observed((*known, hidden)), study(tmp_path)).unseen == (hidden,)


@pytest.mark.parametrize(
    ("handed", "unseen"),
    [
        ("shard = partial(FSDP, **settings)", 0),
        ("shard = partial(FSDP)  # fsdp-migrate: leave", 0),
        ("shard = partial(MixedPrecision)", 1),
        ("shard = getattr(fsdp, 'Fully' + 'ShardedDataParallel')", 1),
    ],
)
def test_a_class_under_another_name_is_known_where_it_is_handed_on(
    handed: str, unseen: int, tmp_path: Path
) -> None:
    source = (
        "from functools import partial\n"
        "from torch.distributed import fsdp\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n"
        f"def make(net, settings):\n    {handed}\n    return shard(net)\n"
    )
    (tmp_path / "train.py").write_text(source)
    called = use("FullyShardedDataParallel", "shard(net)", source=source)
    assert len(account(Observed((called,)), study(tmp_path)).unseen) == unseen


def test_lines_alone_do_where_columns_are_not_known(tree: Path) -> None:
    old = Use("train.py", Span(8, -1, 8, -1), "FullyShardedDataParallel")
    new = Use("train.py", Span(20, -1, 20, -1), "module")
    assert account(Observed((old, new)), study(tree)).unseen == (new,)


def test_whether_something_has_a_state_is_asked_of_every_module(tree: Path) -> None:
    source = 'hasattr(net, "state_dict")\nhasattr(net, "no_sync")\n'
    (tree / "train.py").write_text(source)
    state = use("state_dict", 'hasattr(net, "state_dict")', source=source)
    other = use("no_sync", 'hasattr(net, "no_sync")', source=source)
    assert account(Observed((state, other)), study(tree)).unseen == (other,)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_what_a_framework_does_is_known_by_its_settings(tree: Path, strategy: str) -> None:
    source = (
        f'import lightning as L\ntrainer = L.Trainer(strategy="{strategy}")\ntrainer.fit(net)\n'
    )
    (tree / "train.py").write_text(source)
    fits = use("FullyShardedDataParallel", "trainer.fit(net)", source=source, through="lightning")
    unseen = account(Observed((fits,)), study(tree)).unseen
    assert unseen == (() if strategy == "fsdp" else (fits,))


def test_what_is_in_no_file_of_the_tree_is_nobodys_site(tree: Path) -> None:
    made = Use("elsewhere.py", Span(1, 0, 1, 5), "no_sync")
    assert not account(Observed((made,)), study(tree)).uses


def test_ranks_and_runs_are_put_together() -> None:
    place = {"t": "use", "file": "a.py", "span": [3, 0, 3, 9], "through": ""}
    ranks: list[list[dict[str, Any]]] = [
        [{**place, "what": "no_sync", "model": 0, "step": 4}],
        [
            {**place, "what": "no_sync", "model": 1, "step": 2},
            {**place, "span": [9, None, None, None], "what": "module", "model": None, "step": 0},
            {"t": "unobserved", "what": "why"},
        ],
    ]
    first, second = read(ranks).uses
    assert (first.models, first.ranks, first.first_step) == ((0, 1), (0, 1), 2)
    assert (second.span, second.models, second.ranks) == (Span(9, -1, 9, -1), (), (1,))
    both = together((read(ranks), read(ranks[:1])))
    assert both.uses == (first, second)
    assert account(both, study(Path(__file__).parent)).caveat.endswith("could be noted: why")


def test_what_is_saved_can_be_read_again() -> None:
    span = Span(1, 2, 3, 4)
    made = Made(0, "a.py", span, "Net", {"use_orig_params": True}, (("", "Net"),), 1)
    observed = Observed((Use("a.py", span, "module", "lib", (0,), (0, 1), 3),), (made,), ("x",))
    assert Observed.of_dict(json.loads(json.dumps(observed.to_dict()))) == observed
    with pytest.raises(ValueError, match="another version"):
        Observed.of_dict({"schema": 0})


# --- reports -------------------------------------------------------------------------------------


def test_every_format_says_what_was_not_seen_and_what_a_gate_points_at(tree: Path) -> None:
    hidden = use("module", "return norms")
    report = Report(
        verdict=Verdict.DIFFERENT,
        says="why",
        program="train.py",
        before="old",
        after="new",
        setting="2 ranks",
        gates=(Question("collectives", "collectives").fails("3 reduce-scatter calls before, 6"),),
        observed=Observed((*KNOWN, hidden)),
    )
    found = against_sites(report, study(tree))
    for name, render in RENDERERS.items():
        shown = " ".join(render(found).replace("\\", "").replace("<wbr>", "").split())
        if name == "json":
            facts = json.loads(render(found))
            assert facts["fsdp1_uses"]["unseen"][0] == {
                "file": "train.py",
                "line": 20,
                "what": "module",
                "through": "",
            }
            (site,) = facts["gates"][0]["sites"]
            assert (site["code"], site["line"]) == ("FSDP402", 16)
            continue
        assert "1 not seen by the rewriter: train.py:20 module" in shown, name
        assert "FSDP402 at train.py:16, FSDP.no_sync" in shown, name
    assert found.verdict is Verdict.DIFFERENT
    plain = against_sites(dataclasses.replace(report, observed=Observed(KNOWN)), study(tree))
    assert not plain.caveat
    assert "used FSDP1 at 4 places, each a site" in " ".join(text.render(plain).split())


AVERAGED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, average):
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        average.start(model)
    with FSDP.summon_full_params(model, writeback=False):
        average.add(model)
    with FSDP.summon_full_params(model, writeback=True):
        average.give(model)


def elsewhere(model):
    with FSDP.summon_full_params(model, recurse=True):
        print(model)
"""


@pytest.mark.parametrize(
    ("step", "lines"), [(None, [6, 8, 10]), (1, [6, 8, 10]), (5, [8, 6, 10]), (9, [10, 8, 6])]
)
def test_a_gate_points_first_at_what_ran_just_before(
    tmp_path: Path, step: int | None, lines: list[int]
) -> None:
    (tmp_path / "train.py").write_text(AVERAGED)
    calls = ("(model)", "(model, writeback=False)", "(model, writeback=True)")
    uses = [
        use("summon_full_params", f"FSDP.summon_full_params{c}", source=AVERAGED, first_step=first)
        for c, first in zip(calls, (0, 4, 8), strict=True)
    ]
    gate = Question("held", "weights kept besides").fails("otherwise", step=step)
    pointed = point([gate], study(tmp_path), Observed(tuple(uses)))
    assert [site.span.line for site in pointed["held", ""]] == lines


# --- programs ------------------------------------------------------------------------------------

LIBRARY = """\
def clip(model):
    model.clip_grad_norm_(0.5)
"""
HIDDEN = """\
                getattr(model, "clip_" + "grad_norm_")(0.5)
                [call() for call in [getattr(model, "check_is" + "_root")]]
                model.clip_grad_norm_(
                    0.5
                )
                model.named_parameters(), model.state_dict
"""
CLIP = "                model.clip_grad_norm_(0.5)\n"


@pytest.mark.train
def test_a_run_shows_what_the_rewriter_does_not_see(tmp_path: Path, server: WarmServer) -> None:
    before = trees("causal")["before"]
    tree = tmp_path / "before"
    tree.mkdir()
    for file in before.iterdir():
        if file.is_file():
            (tree / file.name).write_text(file.read_text())
    source = (tree / "train.py").read_text()
    assert source.count(CLIP) == 1
    source = source.replace(CLIP, HIDDEN)
    (tree / "train.py").write_text(source)
    settings: dict[str, Any] = {"twin": False, "max_steps": 2, "precision": "native"}
    report = judged("causal", before=tree, after=tree, server=server, **settings)
    found = against_sites(report, study(tree))
    assert found.accounted is not None
    first = source[: source.index(HIDDEN)].count("\n") + 1
    unseen = [(u.span.line - first, u.what) for u in found.accounted.unseen]
    assert unseen == [(0, "clip_grad_norm_"), (1, "check_is_root")], text.render(found)
    assert (3, "clip_grad_norm_") not in unseen
    (made,) = report.observed.made
    assert made.arguments["sync_module_states"] is True
    assert [kind for _, kind in made.units] == ["Transformer", "Block", "Block", "Block"]
    clipped = [u for u in report.observed.uses if u.what == "clip_grad_norm_"]
    assert [(u.models, u.ranks) for u in clipped] == [((0,), (0, 1))] * 2
