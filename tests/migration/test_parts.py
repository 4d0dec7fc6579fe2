"""Trees of several projects: each is migrated for itself, what uses another's models with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.cli import session
from fsdp_migrate.migration import components, engine
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import ROOT, migrate

GOOD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches):
    model = FSDP(net)
    for batch in batches:
        model(batch).sum().backward()
        model.clip_grad_norm_(1.0)
"""
# FSDP1's own method on a model that may be any: all that are made here stay as they are.
HELD = f"""\
{GOOD}

def saved(model):
    return FSDP.state_dict(model)
"""
# A model that nothing is known about: any of those around.
SAVED = """\
def saved(model):
    with FSDP.state_dict_type(model, torch.distributed.fsdp.StateDictType.FULL_STATE_DICT):
        return model.state_dict()
"""
USER = f"""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{SAVED}"""


def split(files: dict[str, str]) -> list[list[str]]:
    data = {ROOT / name: text.encode() for name, text in files.items()}
    sources, problems = engine.read(data, {ROOT / name: name for name in files})
    assert not problems
    return [[m.display for m in part.modules] for part in components.split(Project(sources))]


def test_each_project_is_migrated_for_itself(tmp_path: Path) -> None:
    for name, text in PROJECTS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "setup.py").write_text("")
        (tmp_path / name / "train.py").write_text(text)
    run = session.run([tmp_path])
    listed = [d.site.module.display for d in run.result.decisions]
    assert listed == sorted(listed)
    for name in PROJECTS:
        path = tmp_path / name / "train.py"
        alone = session.run([tmp_path / name])
        assert run.result.changes[path] == alone.result.changes[path]
        together = [d for d in run.result.decisions if d.site.module.path == path]
        assert [(d.code, d.outcome) for d in together] == [
            (d.code, d.outcome) for d in alone.result.decisions
        ]
    good = [d for d in run.result.decisions if d.site.module.path.parent.name == "good"]
    assert {d.outcome for d in good} == {Outcome.REWRITTEN}


PROJECTS = {"good": f"{GOOD}\n\n{SAVED}", "held": HELD}


def test_what_stays_holds_back_what_it_may_be_handed_in_its_repository(tmp_path: Path) -> None:
    """No import says so, but a plugin may be given any model around."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(GOOD)
    (tmp_path / "plugins" / "save.py").write_text(HELD)
    run = session.run([tmp_path], partial=False)
    assert {d.outcome for d in run.result.decisions} == {Outcome.LEFT}
    assert tmp_path / "train.py" not in run.result.changes
    waiting = [d for d in run.result.decisions if d.site.module.path == tmp_path / "train.py"]
    alone = Path(waiting[0].site.module.display).parent
    way_out = f"or, if no model of {alone} gets there, run on that by itself"
    assert all(d.help.endswith(way_out) for d in waiting)


LOADING = f"import importlib\n{GOOD}\nplugin = importlib.import_module('save')\n"
BESIDE = {  # what lies beside a program whose model stays FSDP1, and what the repository has
    "programs of a collection": ("one/train.py", f"{GOOD}\n\n{SAVED}", ".git", True),
    "below each other": ("train.py", GOOD, ".git", False),
    "what anybody may install": ("one/train.py", GOOD, "pyproject.toml", False),
    "what loads by a name": ("one/train.py", LOADING, ".git", False),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_programs_of_a_collection_are_migrated_for_themselves(tmp_path: Path, kind: str) -> None:
    name, text, marker, goes = BESIDE[kind]
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
    (tmp_path / marker).write_text("")
    (tmp_path / name).write_text(text)
    (tmp_path / "two" / "save.py").write_text(HELD)
    run = session.run([tmp_path], partial=False)
    own = [d for d in run.result.decisions if d.site.module.path == tmp_path / name]
    assert own
    assert {d.outcome for d in own} == {Outcome.REWRITTEN if goes else Outcome.LEFT}
    assert b"= FSDP(net)" in run.result.changes[tmp_path / "two" / "save.py"]


def test_what_makes_no_model_is_no_program_of_a_collection(tmp_path: Path) -> None:
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
    (tmp_path / ".git").write_text("")
    (tmp_path / "one" / "save.py").write_text(USER)
    (tmp_path / "two" / "save.py").write_text(HELD)
    run = session.run([tmp_path], partial=False)
    assert {d.outcome for d in run.result.decisions} == {Outcome.LEFT}


def test_the_reason_named_is_one_that_no_other_form_takes_away(tmp_path: Path) -> None:
    """What only the written-out form cannot do is no reason where the run-time form can."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "one" / "train.py").write_text(f"{GOOD}\n\n{SAVED}".replace("FSDP(net)", KWARGS))
    (tmp_path / "two" / "save.py").write_text(HELD)
    run = session.run([tmp_path], partial=False)
    assert {d.outcome for d in run.result.decisions} == {Outcome.LEFT}
    own = [d for d in run.result.decisions if not d.held]
    assert {d.site.module.path.name for d in own} == {"save.py"}
    assert all("save.py" in d.message for d in run.result.decisions if d.held)


KWARGS = "FSDP(net, **kwargs)"


def test_a_review_refuses_across_parts() -> None:
    files = {"a/train.py": GOOD, "b/train.py": GOOD}
    result, _ = migrate(files)
    assert result.again is not None
    refused = {
        engine.key(d): "not now" for d in result.decisions if d.site.module.display.startswith("a/")
    }
    later = result.again(refused)
    assert {p.relative_to(ROOT).as_posix() for p in later.changes} == {"b/train.py"}
    assert len(later.decisions) == len(result.decisions)


def test_imports_make_one_part() -> None:
    files = {
        "lib/model.py": GOOD,
        "app/main.py": "from lib.model import train\n\ntrain(None, [])\n",
        "other/main.py": GOOD,
    }
    assert split(files) == [["app/main.py", "lib/model.py"], ["other/main.py"]]


def test_scripts_of_one_directory_are_one_part() -> None:
    assert split({"a.py": GOOD, "b.py": GOOD}) == [["a.py", "b.py"]]
    assert split({"a.py": GOOD, "sub/b.py": GOOD}) == [["a.py"], ["sub/b.py"]]


def test_what_makes_no_model_stays_with_what_may_be_its_maker() -> None:
    """A plugin that is loaded by name: nothing imports it, and its model is somebody's here."""
    files = {"train.py": GOOD, "plugins/save.py": USER}
    assert split(files) == [["plugins/save.py", "train.py"]]
    result, after = migrate(files)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "get_model_state_dict" in after["plugins/save.py"]
    assert split({**files, "plain/text.py": "x = 1\n"}) == [
        ["plain/text.py"],
        ["plugins/save.py", "train.py"],
    ]


def test_repositories_end_where_their_markers_say(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "plugins").mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").write_text("")
        (tmp_path / name / "train.py").write_text(GOOD if name == "one" else HELD)
    (tmp_path / "one" / "plugins" / "save.py").write_text(USER)
    run = session.run([tmp_path])
    left = {
        d.site.module.path.relative_to(tmp_path).parts[0]
        for d in run.result.decisions
        if d.outcome is Outcome.LEFT
    }
    assert left == {"two"}
    assert {p.relative_to(tmp_path).as_posix() for p in run.changed} >= {
        "one/plugins/save.py",
        "one/train.py",
    }


@pytest.mark.parametrize(
    "files",
    [
        {"wandb.py": "import wandb\n\nwandb.run.log\n", "train.py": GOOD + "import wandb\n"},
        {"a.py": "import b\nb.x.y\n", "b.py": "import a\na.b.x\n", "train.py": GOOD + "import a\n"},
        {  # there is no lib/wrap.py that could be read
            "lib/__init__.py": "from .wrap import wrap\n",
            "train.py": GOOD + "from lib.wrap import config\n",
        },
        {"a.py": "from b import x\n", "b.py": "from a import x\n", "train.py": "import a\n" + GOOD},
    ],
)
def test_imports_that_lead_back_to_themselves_end(files: dict[str, str]) -> None:
    result, _ = migrate(files)
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
