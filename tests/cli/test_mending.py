"""``rewrite --hazards``: what is wrong in code that uses FSDP2 is put right, and nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.documents import schemas
from tests.helpers.commandline import ROOT, Command
from tests.helpers.hazards import codes, notes
from tests.helpers.terminal import at_terminal

WRONG = """\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model, mesh):
    return fully_shard(
        model,
        device_mesh=mesh,
    )


def main(model, mesh):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = shard(model, mesh)
    return model, optimizer
"""
RIGHT = """\
import torch
from torch.distributed.fsdp import fully_shard


def shard(model, mesh):
    return fully_shard(
        model,
        mesh=mesh,
    )


def main(model, mesh):
    model = shard(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer
"""
LEFT = """\
from torch.distributed.fsdp import fully_shard


def shard(model, policy):
    return fully_shard(model, auto_wrap_policy=policy)
"""
FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard


def old(net):
    return FSDP(net)


def new(net, mesh):
    return fully_shard(net, device_mesh=mesh)
"""
MAY_BE = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    return fully_shard(model.net)


def train(engine, batch):
    engine.set_requires_gradient_sync(False, True)
"""


@pytest.fixture
def wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(WRONG)
    return tmp_path / "a.py"


def test_it_is_put_right_and_back(wrong: Path, run: Command) -> None:
    answer = run("rewrite", "--hazards", ".")
    assert answer.code == 0
    assert wrong.read_text() == RIGHT
    assert "FSDP951  mended   a.py:6:12" in answer.out
    assert "2 hazards in code that uses FSDP2, 2 mended" in answer.out
    assert run("check", ".").code == 0
    assert run("undo").code == 0
    assert wrong.read_text() == WRONG


def test_only_the_flag_does_it(wrong: Path, run: Command) -> None:
    assert run("rewrite", ".").code == 0
    assert run("rewrite", "--select", "FSDP9", ".").code == 0
    assert wrong.read_text() == WRONG


def test_a_dry_run_prints_the_patch(wrong: Path, run: Command) -> None:
    answer = run("rewrite", "--hazards", "--dry-run", ".")
    assert answer.code == 1
    assert wrong.read_text() == WRONG
    subprocess.run(["git", "apply", "-"], input=answer.out, cwd=wrong.parent, text=True, check=True)
    assert wrong.read_text() == RIGHT


@pytest.mark.parametrize(
    "options",
    [("--select", "FSDP951"), ("--ignore", "FSDP903"), ("--leave", "FSDP903")],
    ids=lambda option: option[0],
)
def test_codes_choose_what_is_mended(wrong: Path, run: Command, options: tuple[str, ...]) -> None:
    run("rewrite", "--hazards", *options, ".")
    assert wrong.read_text() == WRONG.replace("device_mesh=", "mesh=")


def test_the_configuration_chooses_as_well(wrong: Path, run: Command) -> None:
    (wrong.parent / "pyproject.toml").write_text('[tool.fsdp-migrate]\nignore = ["FSDP951"]\n')
    assert "FSDP951" not in run("check", ".").out
    run("rewrite", "--hazards", ".")
    assert wrong.read_text() == RIGHT.replace("        mesh=", "        device_mesh=")


def test_a_comment_keeps_it(wrong: Path, run: Command) -> None:
    ignored = "return fully_shard(  # fsdp-migrate: ignore[FSDP951] not torch's, in the end"
    wrong.write_text(WRONG.replace("return fully_shard(", ignored))
    assert run("rewrite", "--hazards", ".").code == 0
    assert wrong.read_text() == RIGHT.replace("return fully_shard(", ignored).replace(
        "        mesh=", "        device_mesh="
    )


def test_what_has_no_sure_form_is_left(wrong: Path, run: Command) -> None:
    wrong.write_text(LEFT)
    answer = run("rewrite", "--hazards", ".")
    assert answer.code == 1
    assert "FSDP951  left     a.py:5:12" in answer.out
    assert "call fully_shard of each layer first" in answer.out
    assert wrong.read_text() == LEFT


def test_a_migration_and_a_mend_go_together(wrong: Path, run: Command) -> None:
    wrong.write_text(FSDP1)
    assert run("rewrite", "--hazards", ".").code == 0
    after = wrong.read_text()
    assert "FSDP(" not in after
    assert "fully_shard(net, mesh=mesh)" in after
    wrong.write_text(FSDP1)
    run("rewrite", "--select", "FSDP9", "--hazards", ".")
    assert wrong.read_text() == FSDP1.replace("device_mesh=", "mesh=")


def test_line_ends_and_encodings_stay(wrong: Path, run: Command) -> None:
    written = f"# coding: latin-1\n# \u00e9\n{WRONG}"
    wrong.write_bytes(written.replace("\n", "\r\n").encode("latin-1"))
    run("rewrite", "--hazards", ".")
    after = wrong.read_bytes().decode("latin-1")
    assert after.replace("\r\n", "\n") == f"# coding: latin-1\n# \u00e9\n{RIGHT}"


def test_check_says_what_can_be_mended(wrong: Path, run: Command) -> None:
    told = run("check", "--format", "concise", ".").out
    assert "a.py:6:12: FSDP951 [*] fully_shard" in told
    assert told.endswith("Next: fsdp-migrate rewrite . --hazards\n")
    wrong.write_text(LEFT)
    assert "[*]" not in run("check", "--format", "concise", ".").out


def test_json_has_each_edit_by_itself(wrong: Path, run: Command) -> None:
    document = json.loads(run("check", "--format", "json", ".").out)
    assert schemas.problems("check", document) == []
    assert document["changes"] == []  # what rewrite does, unless it is asked for hazards
    first, second = document["hazards"]
    assert (first["line"], first["end_line"], first["end_column"]) == (6, 9, 6)
    assert first["level"] == "warning"
    assert first["edits"] == [{"line": 8, "end_line": 9, "text": "        mesh=mesh,\n"}]
    assert [(e["line"], e["end_line"]) for e in second["edits"]] == [(13, 13), (14, 15)]


def test_sarif_has_a_fix_for_each(wrong: Path, run: Command) -> None:
    document = json.loads(run("check", "--format", "sarif", ".").out)
    first, second = document["runs"][0]["results"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert (region["startLine"], region["endLine"], region["endColumn"]) == (6, 9, 6)
    for result in (first, second):
        (fix,) = result["fixes"]
        (change,) = fix["artifactChanges"]
        assert change["artifactLocation"]["uri"] == "a.py"
    wrong.write_text(LEFT)
    document = json.loads(run("check", "--format", "sarif", ".").out)
    assert "fixes" not in document["runs"][0]["results"][0]


def test_github_marks_all_lines_of_it(wrong: Path, run: Command) -> None:
    told = run("check", "--format", "github", ".").out
    assert "::warning file=a.py,line=6,col=12,endLine=9,endColumn=6,title=FSDP951::" in told


def test_html_says_so(wrong: Path, run: Command) -> None:
    assert "rewrite --hazards does it" in run("check", "--format", "html", ".").out


def test_a_notebook_is_mended_in_its_cells(tmp_path: Path, run: Command, wrong: Path) -> None:
    wrong.unlink()
    cells: list[dict[str, object]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": s}
        for s in (
            ["from torch.distributed.fsdp import fully_shard"],
            ["def shard(model, mesh):\n", "    fully_shard(model, device_mesh=mesh)"],
        )
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(book, indent=1))
    document = json.loads(run("check", "--format", "json", ".").out)
    assert schemas.problems("check", document) == []
    (hazard,) = document["hazards"]
    assert (hazard["cell"], hazard["line"]) == (2, 2)
    (edit,) = hazard["edits"]
    lines = path.read_text().splitlines(keepends=True)
    lines[edit["line"] - 1 : edit["end_line"] - 1] = edit["text"]
    assert run("rewrite", "--hazards", ".").code == 0
    assert path.read_text() == "".join(lines)
    assert json.loads(path.read_text())["cells"][1]["source"][1] == (
        "    fully_shard(model, mesh=mesh)"
    )


def test_what_may_be_wrong_is_told_to_those_who_ask(wrong: Path, run: Command) -> None:
    wrong.write_text(MAY_BE)
    answer = run("check", "--format", "concise", ".")
    assert answer.code == 0
    assert "FSDP951" not in answer.out
    assert "1 place may be wrong in code that uses FSDP2: --notes tells of them" in answer.out
    asked = run("check", "--format", "concise", "--notes", ".")
    assert asked.code == 0
    assert "a.py:9:5: FSDP951 [note] set_requires_gradient_sync" in asked.out
    assert "--notes tells" not in asked.out
    assert "1  FSDP951  [note]" in run("check", "--statistics", "--notes", ".").out
    run("rewrite", "--hazards", ".")
    assert wrong.read_text() == MAY_BE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("full", "FSDP951 [note]"),
        ("json", '"level": "note"'),
        ("github", "::notice file=a.py,line=9"),
        ("sarif", '"level": "note"'),
        ("markdown", "### Perhaps hazards"),
        ("html", "<h2>Perhaps hazards</h2>"),
    ],
)
def test_every_format_tells_notes_apart(wrong: Path, run: Command, name: str, said: str) -> None:
    wrong.write_text(MAY_BE)
    assert said in run("check", "--format", name, "--notes", ".").out
    without = run("check", "--format", name, ".").out
    assert said not in without
    if name == "json":
        document = json.loads(without)
        assert document["hazards"] == []
        assert document["summary"]["possible_hazards"] == 1
        assert schemas.problems("check", document) == []


def test_a_comment_silences_a_note(wrong: Path, run: Command) -> None:
    comment = "  # fsdp-migrate: ignore[FSDP951] an engine of our own"
    wrong.write_text(MAY_BE.rstrip("\n") + comment + "\n")
    told = run("check", "--format", "concise", "--notes", ".").out
    assert "FSDP951" not in told
    assert "FSDP990" not in told


def test_a_model_that_may_be_another_is_a_note() -> None:
    source = """\
from torch.distributed.fsdp import fully_shard


def main(net, other, batch, flag):
    fully_shard(net.head)
    sharded = fully_shard(net)
    model = sharded if flag else Other()
    total = 0
    for p in model.parameters():
        total += p.grad.to_local().pow(2).sum()
    print(total)


class Other:
    pass
"""
    assert notes(source) == ["FSDP901"]
    assert codes(source) == []


def test_a_tree_without_either_is_not_read(wrong: Path, run: Command) -> None:
    wrong.write_text(WRONG.replace("torch.distributed.fsdp", "engine.shards"))
    answer = run("check", ".")
    assert answer.code == 0
    assert "no FSDP1 found" in answer.out
    wrong.write_text(WRONG)
    assert run("check", ".").code == 1


def test_explain_tells_of_the_place(wrong: Path, run: Command) -> None:
    answer = run("explain", "a.py:13")
    assert answer.code == 1
    assert "FSDP903 [*] this optimizer" in answer.out
    assert "Build the optimizer below" in answer.out
    assert run("explain", "a.py:1").code == 0
    wrong.write_text(LEFT)
    assert run("check", ".").out.endswith("Next: fsdp-migrate explain a.py:5\n")


def test_a_review_asks_for_each(wrong: Path) -> None:
    answer = at_terminal(wrong.parent, "rewrite", ".", "--hazards", "--review", answers="ny")
    assert "1 of 2: a.py:6: FSDP951 fully_shard" in answer.out
    assert wrong.read_text() == RIGHT.replace("        mesh=", "        device_mesh=")


def test_the_hook_tells_of_fsdp2_alone(wrong: Path, run: Command) -> None:
    hooks = {h["id"]: h for h in YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")}
    program, *words = hooks["fsdp2-lint"]["entry"].split()
    assert program == "fsdp-migrate"
    answer = run(*words, *hooks["fsdp2-lint"]["args"])
    assert answer.code == 1
    assert "FSDP951" in answer.out
    wrong.write_text(FSDP1.replace("device_mesh=", "mesh="))
    assert run(*words, ".").code == 0
