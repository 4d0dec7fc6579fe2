"""The files that define what a wrapped model is made of are read, whatever words they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.discovery.test_gate import IMPORT, lay

COUNTING = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x)

    def size(self):
        return self.a.weight.numel()
"""
CHOOSING = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(x)
        if x.mean().item() > 0:
            x = x + self.b(x)
        return x
"""
BASE = COUNTING.replace("Net", "Base").replace(
    "    def forward(self, x):\n", "    def run(self, x):\n"
)
HOLDER = """\
from torch import nn

from part import Net


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Net() for _ in range(2)])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
"""


def training(imports: str, model: str = "Net()") -> str:
    return f"""\
import torch
{IMPORT}{imports}

model = FSDP({model}, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    model(x).sum().backward()
    optimizer.step()
"""


def read(root: Path, files: dict[str, str]) -> session.Run:
    return session.run([lay(root, files)])


def codes(run: session.Run, name: str) -> set[str]:
    return {d.code for d in run.result.decisions if d.site.module.path.name == name}


WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "import": ("net.py", {"train.py": training("from net import Net"), "net.py": COUNTING}),
    "import of the module": (
        "net.py",
        {"train.py": training("import net as nets", "nets.Net()"), "net.py": COUNTING},
    ),
    "re-export": (
        "net.py",
        {
            "train.py": training("from nets import Net"),
            "nets/__init__.py": "from .net import Net\n",
            "nets/net.py": COUNTING,
        },
    ),
    "star": (
        "net.py",
        {
            "train.py": training("from nets import *"),
            "nets/__init__.py": "from .net import *\n",
            "nets/net.py": COUNTING,
        },
    ),
    "the package itself": (
        "__init__.py",
        {"train.py": training("from nets import Net"), "nets/__init__.py": COUNTING},
    ),
    "a function that builds": (
        "net.py",
        {
            "train.py": training("from factory import build", "build()"),
            "factory.py": "from net import Net\n\n\ndef build():\n    return Net()\n",
            "net.py": COUNTING,
        },
    ),
    "base class": (
        "base.py",
        {
            "train.py": training("from net import Net"),
            "net.py": "from base import Base\n\n\nclass Net(Base):\n"
            "    def forward(self, x):\n        return self.run(x)\n",
            "base.py": BASE,
        },
    ),
    "base without torch": (
        "sizes.py",
        {
            "train.py": training("from net import Net"),
            "net.py": COUNTING.split("    def size", maxsplit=1)[0]
            .replace("nn.Module", "Sizes, nn.Module")
            .replace("\n\n\n", "\n\nfrom sizes import Sizes\n\n\n", 1),
            "sizes.py": "class Sizes:\n    def size(self):\n        return self.a.weight.numel()\n",
        },
    ),
    "part": (
        "part.py",
        {
            "train.py": training("from whole import Whole", "Whole()"),
            "whole.py": HOLDER,
            "part.py": COUNTING,
        },
    ),
    "part that is given": (
        "part.py",
        {
            "train.py": training(
                "from part import Net\nfrom torch import nn", "nn.Sequential(Net())"
            ),
            "part.py": COUNTING,
        },
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_file_of_a_class_is_read(tmp_path: Path, way: str) -> None:
    name, files = WAYS[way]
    run = read(tmp_path, files)
    assert name in {path.name for path in run.found.others}
    assert name not in {Path(path).name for path in run.found.library}
    assert not run.result.problems


@pytest.mark.parametrize(
    "way", [way for way in WAYS if "part" not in way and way != "base without torch"]
)
def test_methods_that_count_are_asked_where_they_are(tmp_path: Path, way: str) -> None:
    name, files = WAYS[way]
    run = read(tmp_path, {**files, "train.py": files["train.py"] + "print(model.size())\n"})
    assert codes(run, name) == {"FSDP408"}
    assert [path.name for path in run.changed] == sorted({name, "train.py"})


@pytest.mark.parametrize("wrapped", ["Net()", "Whole()"])
def test_parts_that_a_forward_leaves_out_are_found(tmp_path: Path, wrapped: str) -> None:
    name = {"Net()": "part", "Whole()": "whole"}[wrapped]
    main = training(f"from {name} import {wrapped[:-2]}", wrapped)
    run = read(tmp_path, {"train.py": main, "whole.py": HOLDER, "part.py": CHOOSING})
    assert "FSDP420" in codes(run, "train.py")


def test_what_is_written_is_migrated(tmp_path: Path) -> None:
    main = training("from net import Net") + "print(model.size())\n"
    run = read(tmp_path, {"train.py": main, "net.py": COUNTING})
    assert tmp_path / "net.py" in run.changed
    for path, data in run.result.changes.items():
        path.write_bytes(data)
    again = session.run([tmp_path])
    assert not again.result.decisions
    assert not again.changed


def test_files_that_no_wrapped_model_comes_from_are_not_read(tmp_path: Path) -> None:
    files = {
        "train.py": training(
            "from net import Net\nfrom data import loader\nfrom other import Other"
        ),
        "net.py": f"{COUNTING}".replace(
            "from torch import nn\n", "from torch import nn\n\nfrom settings import Settings\n"
        ).replace("        self.a =", "        self.settings = Settings()\n        self.a ="),
        "settings.py": "class Settings:\n    width = 4\n",
        "data.py": "class Data:\n    def numel(self):\n        return 3\n\n\nloader = [Data()]\n",
        "other.py": COUNTING.replace("Net", "Other"),
        "apart.py": COUNTING,
    }
    run = read(tmp_path, files)
    assert {path.name for path in run.found.others} == {"net.py"}
    assert {Path(p).name for p in run.found.library} == {
        "settings.py",
        "data.py",
        "other.py",
        "apart.py",
    }
    assert run.result.modules == 2


def test_models_that_nothing_wraps_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp_migrate.migration.model_files.finding", None)  # finds nothing
    main = "from net import Net\n\nmodel = Net()\n"
    run = read(tmp_path / "without", {"train.py": main, "net.py": COUNTING})
    assert (run.result.modules, run.found.others) == (0, {})
    alone = training("from torch import nn", "nn.Linear(4, 4)")  # it imports nothing
    run = read(tmp_path / "alone", {"train.py": alone, "net.py": COUNTING})
    assert (run.result.modules, run.result.problems, run.found.others) == (1, [], {})
