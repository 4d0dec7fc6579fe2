"""Which module of the tree an import means, and when it means what is installed."""

from __future__ import annotations

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import ROOT, migrate

WRAPS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(2, 2))
"""


def project(files: dict[str, str]) -> Project:
    data = {ROOT / name: text.encode() for name, text in files.items()}
    sources, problems = engine.read(data, {ROOT / name: name for name in files})
    assert not problems
    return Project(sources)


def outside(files: dict[str, str], name: str, importer: str) -> set[str]:
    """What ``name`` stands for outside of the project, when it stands in ``importer``."""
    found = project(files)
    (module,) = (m for m in found.modules if m.display == importer)
    return set(found.canonical(name, module))


@pytest.mark.parametrize(
    "packages",
    [
        ["pkg/__init__.py", "pkg/train/__init__.py", "pkg/train/torch/__init__.py"],
        ["pkg/train/torch/__init__.py", "pkg/train/torch/distributed.py"],
        ["pkg/train/torch.py"],
        ["torch/__init__.py", "torch/distributed/fsdp.py"],
    ],
)
def test_torch_is_torch_whatever_directories_are_called(packages: list[str]) -> None:
    result, after = migrate({"pkg/train/loop.py": WRAPS, **dict.fromkeys(packages, "A = 1\n")})
    assert [d.code for d in result.decisions if d.outcome is Outcome.REWRITTEN] == ["FSDP101"]
    assert "fully_shard(torch.nn.Linear(2, 2))" in after["pkg/train/loop.py"]


@pytest.mark.parametrize(
    ("files", "name", "found"),
    [
        # beside a package of the same name that has no such thing: what is installed
        ({"pkg/datasets/__init__.py": "A = 1\n"}, "datasets.load_dataset", True),
        ({"pkg/datasets/__init__.py": "A = 1\n", "pkg/__init__.py": ""}, "datasets.load", True),
        # one that has it, or may
        ({"pkg/datasets/__init__.py": "def load(): ...\n"}, "datasets.load", False),
        ({"pkg/datasets/__init__.py": "def __getattr__(name): ...\n"}, "datasets.load", False),
        ({"pkg/datasets/__init__.py": "", "pkg/datasets/load.py": ""}, "datasets.load", False),
        # scripts that are run in a directory inside of a package
        (
            {"pkg/__init__.py": "", "pkg/net/__init__.py": "", "pkg/net/model.py": "Net = 1\n"},
            "net.model.Net",
            False,
        ),
    ],
)
def test_a_directory_of_the_project_or_what_is_installed(
    files: dict[str, str], name: str, found: bool
) -> None:
    files = {**files, "pkg/tools/run.py": "A = 1\n"}
    assert outside(files, name, "pkg/tools/run.py") == ({name} if found else set())


MAKES_CLASSES = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = FSDP(nn.Linear(2, 2))


def with_head(base):
    class WithHead(base):
        def clip(self):
            self.net.clip_grad_norm_(1.0)

    return WithHead


class Named(Base):
    def clip(self):
        self.net.clip_grad_norm_(1.0)


model = with_head(Base)()
"""


def test_bases_that_are_given_to_a_function_are_followed() -> None:
    result, after = migrate({"train.py": MAKES_CLASSES})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert after["train.py"].count("nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)") == 2


NESTED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Core:
    class Config:
        rate: float = 1.0


class Data(Core):
    class Config(Core.Config):
        size: int = 1


class Model(Core):
    class Config(Core.Config):
        depth: int = 1


class Trainer(Data, Model):
    class Config(Data.Config, Model.Config):
        steps: int = 1

    def clip(self, model):
        self.model = FSDP(model)
        self.model.clip_grad_norm_(self.Config.rate)


class Longer(Trainer):
    class Config(Trainer.Config, Data.Config, Model.Config): ...


class Other(Trainer, Core):
    class Config(Trainer.Config, Core.Config): ...
"""


def test_classes_of_many_bases_are_each_looked_at_once() -> None:
    """Bases that are attributes of classes of the same family: every way to them was followed."""
    result, _ = migrate({"train.py": NESTED, "more.py": NESTED.replace("Core", "Base")})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


CLASSES = """\
from typing import TypeAlias

from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

Sharded: TypeAlias = FullyShardedDataParallel
"""
PACKAGE = {
    "lib/__init__.py": "from lib.classes import Sharded as Sharded\n",
    "lib/classes.py": CLASSES,
}
USES = {
    "imported": ("from lib.classes import Sharded", "Sharded"),
    "handed on": ("from lib import Sharded", "Sharded"),
    "renamed": ("from lib import Sharded as S", "S"),
    "of a module": ("from lib import classes", "classes.Sharded"),
    "of a package": ("import lib", "lib.Sharded"),
}


@pytest.mark.parametrize(("line", "name"), USES.values(), ids=USES)
def test_a_name_of_the_projects_own_stands_for_the_class_everywhere(line: str, name: str) -> None:
    text = f"{line}\n\n\ndef build(net) -> {name}:\n    return {name}(net)\n"
    result, after = migrate({**PACKAGE, "a.py": text})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "return fully_shard(net)" in after["a.py"]
    assert f"-> {name}:" in after["a.py"]
    assert after["lib/classes.py"].endswith("Sharded: TypeAlias = FSDPModule\n")
    again, _ = migrate(after)
    assert not again.decisions


def test_a_name_that_stands_for_several_is_not_the_class() -> None:
    text = (
        "from torch.distributed.fsdp import FullyShardedDataParallel\n"
        "from torch.nn.parallel import DistributedDataParallel\n\n"
        "Wrapper = FullyShardedDataParallel\n"
        'if KIND == "ddp":\n    Wrapper = DistributedDataParallel\n\nmodel = Wrapper(net)\n'
    )
    result, after = migrate({"a.py": text})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert "model = Wrapper(net)" in after["a.py"]


def test_a_name_for_fsdp2s_class_is_known() -> None:
    # Without that, models that FSDP2 shards would take the way of FSDP1's.
    text = (
        "from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel\n\n"
        "One = FullyShardedDataParallel\nTwo = FSDPModule\n\n\n"
        "def kind(net):\n    model = One(net)\n"
        "    if isinstance(model, One):\n        return 1\n"
        "    if isinstance(model, Two):\n        return 2\n"
    )
    result, after = migrate({"a.py": text})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "return 1" not in after["a.py"]
    assert "if isinstance(model, Two):\n        return 2" in after["a.py"]


# -- imports that lose their uses, and stay -----------------------------------------------------

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
BUILD = "\n\ndef build(net):\n    return FSDP(net)\n"
STAYING = {
    "deleted": {"example.py": f"{FSDP}model = FSDP(make())\ndel FSDP\n"},
    "on a line with others": {
        "example.py": f"import torch; {FSDP}model = FSDP(make())\ndel FSDP\n"
    },
    "deleted, and imported again": {
        "example.py": f"{FSDP}first = FSDP(make())\ndel FSDP\n{FSDP}second = FSDP(make())\n"
    },
    "replaced by its name": {
        "train/__init__.py": "from .example import FSDP, build\n",
        "train/example.py": FSDP + BUILD,
        "test_it.py": "from unittest import mock\n\nfrom train import FSDP, build\n\n\n"
        'def test():\n    with mock.patch("train.example.FSDP"):\n        build(1)\n',
    },
}


@pytest.mark.parametrize("files", STAYING.values(), ids=STAYING)
def test_an_import_that_stays_without_a_use_is_left_by_the_first_run(files: dict[str, str]) -> None:
    result, after = migrate(files)
    assert not result.problems
    imports = [d for d in result.decisions if str(d.site.construct).startswith("import(")]
    assert [(d.code, d.outcome) for d in imports] == [("FSDP100", Outcome.LEFT)]
    display = imports[0].site.module.display
    assert "TODO" not in after[display]  # it does no harm
    assert "FullyShardedDataParallel as FSDP, fully_shard" in after[display]
    again, _ = migrate(after)
    assert not again.changes


def test_an_import_that_a_comment_ignores_gets_no_marker() -> None:
    ignored = FSDP.replace("\n", "  # fsdp-migrate: leave[FSDP100]\n")
    _, after = migrate({"example.py": f"{ignored}model = FSDP(make())\ndel FSDP\n"})
    assert "TODO" not in after["example.py"]
    assert "fully_shard(make())" in after["example.py"]
