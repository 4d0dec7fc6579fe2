"""Whether the code that ran is that of the trees that are judged."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import sysconfig
import venv
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_migrate.verify.capture.imported import imported
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Status
from fsdp_migrate.verify.compare.gates.shape import migrated_code_ran
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.inject.installed import lead_into_copy
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify

from .recordings import evidence

TRAIN = """\
import torch
import torch.distributed as dist

from toy.parallel import wrap

dist.init_process_group("gloo")
torch.manual_seed(0)
model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FSDP1 = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel


def wrap(model):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
"""
FSDP2 = """\
from torch.distributed.fsdp import fully_shard


def wrap(model):
    return fully_shard(model)
"""


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A project with its package in ``src``, so that a script only finds it where it is installed;
    and the project migrated."""
    found = []
    for side, source in (("before", FSDP1), ("after", FSDP2)):
        tree = tmp_path / side
        package = tree / "src" / "toy"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "parallel.py").write_text(source)
        (package / "spare.py").write_text(f"# {side}\n")
        (tree / "train.py").write_text(TRAIN)
        found.append(tree)
    return found[0], found[1]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that sees the packages of this one."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    packages(folder).joinpath("others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def packages(folder: Path) -> Path:
    return next(folder.glob("lib/python*/site-packages"))


def judged(trees: tuple[Path, Path], python: Path | None = None, **changes: object) -> Report:
    before, after = trees
    given = {"python": str(python)} if python else {}
    settings = {"script": "train.py", "max_steps": 3, "twin": False, **given, **changes}
    return verify(Plan(before=before, after=after, **settings))  # type: ignore[arg-type]


@pytest.mark.train
def test_what_is_installed_editable_is_imported_from_the_copy(
    trees: tuple[Path, Path], environment: Path
) -> None:
    """Without that, both sides train the FSDP1 version, and everything is equal."""
    packages(environment).joinpath("toy.pth").write_text(f"{trees[0] / 'src'}\n")
    report = judged(trees, environment / "bin" / "python")
    assert report.verdict is Verdict.SAME, text.render(report)
    (gate,) = (gate for gate in report.gates if gate.key == "ran")
    assert gate.says == "1 of 2 changed files"
    assert "changed code that this run did not import: src/toy/spare.py" in report.limits


@pytest.mark.train
def test_an_installed_copy_of_the_project_is_named(
    trees: tuple[Path, Path], environment: Path
) -> None:
    shutil.copytree(trees[0] / "src" / "toy", packages(environment) / "toy")
    report = judged(trees, environment / "bin" / "python")
    assert report.verdict is Verdict.INCONCLUSIVE, text.render(report)
    assert report.exit_code == 2
    assert "src/toy/parallel.py came from" in report.says
    assert "--env PYTHONPATH=" in " ".join(text.render(report).split())
    given = judged(trees, environment / "bin" / "python", env={"PYTHONPATH": "src"})
    assert given.verdict is Verdict.SAME, text.render(given)


@pytest.mark.train
def test_a_program_that_was_not_migrated_is_no_pass(trees: tuple[Path, Path]) -> None:
    before, after = trees
    shutil.copy2(before / "src/toy/parallel.py", after / "src/toy/parallel.py")
    report = judged(trees, env={"PYTHONPATH": "src"})
    assert report.verdict is Verdict.INCONCLUSIVE, text.render(report)
    assert "never called fully_shard" in report.says


# --- the question alone --------------------------------------------------------------------------


def of_kind(recording: Recording, kind: str) -> Recording:
    units = tuple(dataclasses.replace(unit, kind=kind) for unit in recording.units)
    return dataclasses.replace(recording, units=units)


def ran(before: str = "fsdp1", after: str = "fsdp2", changed: str = "", *imports: str) -> Evidence:
    plain = evidence()
    migrated = dataclasses.replace(of_kind(plain.after, after), imported=frozenset(imports))
    names = frozenset(filter(None, [changed]))
    return Evidence(of_kind(plain.before, before), migrated, changed=names)


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        (ran(), Status.PASS, "as it is in the trees"),
        (ran("plain", "plain"), Status.PASS, ""),  # DDP: other gates speak of it
        (ran("fsdp1", "fsdp1"), Status.VOID, "never called fully_shard"),
        (ran("fsdp2", "fsdp2"), Status.VOID, "no model of the original is FSDP1's"),
        (ran("fsdp1", "fsdp2", "a.py", "a.py", "b.py"), Status.PASS, "1 of 1 changed file"),
        (ran("fsdp1", "fsdp2", "a.py", "b.py"), Status.VOID, "imported none"),
        (ran("fsdp1", "fsdp2", "a.py"), Status.PASS, ""),  # nothing is known of imports
    ],
)
def test_what_is_said_of_the_code_that_ran(found: Evidence, status: Status, says: str) -> None:
    gate = migrated_code_ran(found)
    assert gate.status is status
    assert says in gate.says


def test_a_module_from_outside_matters_only_if_its_file_was_changed() -> None:
    plain = ran()
    after = dataclasses.replace(plain.after, from_outside=(("a.py", "elsewhere/a.py"),))
    named = dataclasses.replace(plain, after=after, changed=frozenset({"a.py"}))
    assert migrated_code_ran(named).status is Status.VOID
    other = dataclasses.replace(named, changed=frozenset({"b.py"}))
    assert migrated_code_ran(other).status is Status.PASS


def module(name: str, file: Path) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = str(file)
    return made


def test_modules_are_known_by_the_names_that_their_folders_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ["src/toy/__init__.py", "src/toy/deep.py", "train.py", "toy_only_here.py"]
    for name, file in (
        ("toy", tmp_path / "src/toy/__init__.py"),
        ("toy.deep", Path("/elsewhere/toy/deep.py")),
        ("deep", Path("/elsewhere/deep.py")),  # inside a package nothing is called so
        ("toy_only_here", tmp_path / "toy_only_here.py"),
    ):
        monkeypatch.setitem(sys.modules, name, module(name, file))
    inside, outside = imported(str(tmp_path), sources)
    assert inside == ["src/toy/__init__.py", "toy_only_here.py"]
    assert outside == [["src/toy/deep.py", "/elsewhere/toy/deep.py"]]


def test_finders_of_editable_installs_lead_into_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    for root in (tree, copy):
        (root / "src" / "toy").mkdir(parents=True)
    (tree / ".venv" / "lib").mkdir(parents=True)  # is not copied
    finder = ModuleType("__editable___toy_0_1_finder")
    finder.MAPPING = {"toy": str(tree / "src/toy"), "else": "/elsewhere"}  # type: ignore[attr-defined]
    finder.NAMESPACES = {"space": [str(tree / "src")]}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    paths = ["", "src", str(tree / "src"), str(tree / ".venv/lib"), "/elsewhere"]
    monkeypatch.setattr(sys, "path", paths)
    lead_into_copy(str(copy), [str(tree)])
    assert sys.path == ["", "src", str(copy / "src"), str(tree / ".venv/lib"), "/elsewhere"]
    assert {"toy": str(copy / "src/toy"), "else": "/elsewhere"} == finder.MAPPING  # type: ignore[attr-defined]
    assert {"space": [str(copy / "src")]} == finder.NAMESPACES  # type: ignore[attr-defined]
