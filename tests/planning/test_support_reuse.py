"""A support module that an earlier run wrote is used and added to; one that was changed is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.discovery.relevance import SUPPORT
from fsdp_migrate.planning import support_library
from tests.helpers.commandline import Command, answering
from tests.helpers.migrating import migrate

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
FIRST = f"{HEAD}def f(net, settings):\n    return FSDP(net, **settings)\n"
SECOND = (
    f"{HEAD}def g(net):\n    model = FSDP(net)\n    with FSDP.summon_full_params(model):\n"
    "        return net.weight\n"
)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Command:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(FIRST)
    (tmp_path / "b.py").write_text(SECOND)
    return answering(capfdbinary)


def modules() -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(Path.cwd().glob(f"{SUPPORT}*.py"))}


def functions(text: str) -> set[str]:
    return {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def test_the_gate_and_the_placement_name_one_file() -> None:
    assert SUPPORT == support_library.NAME


def test_files_one_after_the_other_share_a_module(command: Command) -> None:
    assert command("rewrite", "a.py").code == 0
    alone = modules()
    answer = command("rewrite", "b.py")
    assert answer.code == 0
    assert "2 files changed" in answer.out
    both = modules()
    assert list(both) == [f"{SUPPORT}.py"]
    assert functions(alone[f"{SUPPORT}.py"]) < functions(both[f"{SUPPORT}.py"])
    _, together = migrate({"a.py": FIRST, "b.py": SECOND})
    assert both[f"{SUPPORT}.py"] == together[f"{SUPPORT}.py"]
    assert "from fsdp2_support import full_params" in Path("b.py").read_text()
    assert command("undo").code == 0
    assert modules() == alone
    assert Path("b.py").read_text() == SECOND


def test_a_module_that_has_all_is_not_written(command: Command) -> None:
    command("rewrite", "a.py")
    Path("c.py").write_text(FIRST)
    answer = command("rewrite", "c.py")
    assert "1 file changed" in answer.out
    assert "fsdp2_support" not in answer.out


def test_the_patch_of_a_dry_run_adds_to_it(command: Command) -> None:
    command("rewrite", "a.py")
    patch = command("rewrite", "--dry-run", "b.py").out
    assert "--- a/fsdp2_support.py\n+++ b/fsdp2_support.py\n" in patch


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("def ", "# mine\ndef ", 1),
        lambda text: text + "\n\ndef mine():\n    return 1\n",
        lambda text: text + "\n\nCONSTANT = 1\n",
        lambda text: text.replace("import torch", "import mine\nimport torch", 1),
        lambda text: text.replace("return ", "return 1 or ", 1),
    ],
    ids=["comment", "function", "statement", "import", "body"],
)
def test_a_module_that_was_changed_is_not_overwritten(command: Command, change: object) -> None:
    command("rewrite", "a.py")
    path = Path(f"{SUPPORT}.py")
    assert callable(change)
    path.write_text(changed := change(path.read_text()))
    assert command("rewrite", "b.py").code == 0
    assert modules()[path.name] == changed
    assert "from fsdp2_support_2 import full_params" in Path("b.py").read_text()


def test_a_module_that_was_formatted_is_added_to(command: Command) -> None:
    command("rewrite", "a.py")
    path = Path(f"{SUPPORT}.py")
    text = path.read_text().replace('"', "'").replace("'''", '"""')
    path.write_text(text.replace("\n\n\n", "\n\n"))
    assert command("rewrite", "b.py").code == 0
    assert list(modules()) == [path.name]


def test_a_file_of_that_name_that_is_not_ours_stays(command: Command) -> None:
    path = Path(f"{SUPPORT}.py")
    path.write_text("import torch\n")
    assert command("rewrite", "b.py").code == 0
    assert path.read_text() == "import torch\n"
    assert list(modules()) == [f"{SUPPORT}.py", f"{SUPPORT}_2.py"]


RUN_TIME = (
    "from functools import partial\n\nfrom torch import nn\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n\n\n"
    "def setup(net, **settings):\n"
    "    kinds = partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})\n"
    "    return FSDP(net, auto_wrap_policy=kinds, **settings)\n"
)


@pytest.mark.parametrize("text", ["", "def shard(model):\n    return model\n"])
def test_policies_go_to_ours_beside_a_file_of_that_name(text: str) -> None:
    result, after = migrate({"a.py": RUN_TIME, f"{SUPPORT}.py": text})
    assert not result.problems
    assert after[f"{SUPPORT}.py"] == text
    assert f"from {SUPPORT}_2 import shard" in after["a.py"]
    assert not migrate(after)[0].decisions


def test_policies_are_not_taken_for_those_of_a_file_that_is_not_ours() -> None:
    foreign = {f"{SUPPORT}.py": "def shard(model):\n    return model\n"}
    uses = f"from {SUPPORT} import shard\n\nmodel = shard(net)\n"
    policy = (
        "from torch.distributed.fsdp.wrap import always_wrap_policy\n\nKEPT = always_wrap_policy\n"
    )
    result, _ = migrate({"a.py": policy, "b.py": uses, **foreign})
    assert [str(d.site.construct) for d in result.decisions] == ["always_wrap_policy"]


def test_a_project_does_not_lose_changes_either() -> None:
    _, first = migrate({"a.py": FIRST})
    changed = first[f"{SUPPORT}.py"] + "\n\ndef mine():\n    return 1\n"
    _, after = migrate({"a.py": first["a.py"], f"{SUPPORT}.py": changed, "b.py": SECOND})
    assert after[f"{SUPPORT}.py"] == changed
    assert "full_params" in after[f"{SUPPORT}_2.py"]
