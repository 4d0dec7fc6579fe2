"""``rewrite --summary``: what a reviewer is told, and where it is written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commandline import Command

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Kept(FSDP):
    def state_dict(self):
        return super().state_dict()


def run(net, batches):
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(net, mixed_precision=precision, use_orig_params=True)
    for batch in batches:
        with model.no_sync():
            model(batch).sum().backward()
    model.clip_grad_norm_(1.0)


def keep(body, path):
    other = FSDP(body, limit_all_gathers=True)
    torch.save(other.state_dict(keep_vars=True), path)


if __name__ == "__main__":
    run()
"""
VERDICT = {
    "verdict": "same_training",
    "simulated": True,
    "says": "10 steps | with <b>loss</b>",
    "setting": "2 ranks, gloo, cpu",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def section(text: str, title: str) -> str:
    return text.partition(f"### {title}\n")[2].partition("\n### ")[0]


def test_every_part_is_there(here: Path, run: Command) -> None:
    answer = run("rewrite", ".", "--summary", "pr.md")
    text = (here / "pr.md").read_text()
    after = (here / "train.py").read_text().splitlines()
    assert "rewrote" not in answer.err
    assert text.startswith("## Migrate from FSDP1 to FSDP2\n\n")
    changes = section(text, "What changes")
    assert "| FSDP401 | 1 | Clip gradients with `torch.nn.utils.clip_grad_norm_` |" in changes
    assert "`fsdp-migrate explain` and a rule's code" in changes
    assert "- changed: `train.py`" in section(text, "Files")
    left = [line for line in section(text, "Left").splitlines() if "FSDP103" in line]
    assert left
    row = next(n for n, line in enumerate(after, 1) if line.startswith("class Kept"))
    assert any(line.startswith(f"| `train.py:{row}` | FSDP103 |") for line in left)
    assert "(FSDP402)" in section(text, "What may be different")
    assert "fsdp-migrate verify train.py --before OLD_TREE" in text
    assert "Not verified yet" in text


def test_places_to_review_are_lines_of_the_new_file(here: Path, run: Command) -> None:
    run("rewrite", ".", "--summary", "pr.md")
    after = (here / "train.py").read_text().splitlines()
    marked = [n for n, line in enumerate(after, 1) if "# TODO(fsdp-migrate FSDP" in line]
    listed = section((here / "pr.md").read_text(), "To review")
    for row in listed.splitlines():
        if row.startswith("| `train.py"):
            assert int(row.split("`")[1].partition(":")[2]) in marked, row


def test_each_difference_is_told_once(here: Path, run: Command) -> None:
    (here / "other.py").write_text(TRAIN)
    run("rewrite", ".", "--summary", "pr.md")
    text = (here / "pr.md").read_text()
    assert text.count("(FSDP402)") == 1


def test_dry_run_writes_the_text_and_nothing_else(here: Path, run: Command) -> None:
    answer = run("rewrite", ".", "--dry-run", "--summary", "pr.md")
    assert (here / "train.py").read_text() == TRAIN
    assert answer.out.startswith("diff --git")
    dry = (here / "pr.md").read_text()
    run("rewrite", ".", "--summary", "pr.md")
    assert (here / "pr.md").read_text() == dry


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_standard_output_takes_the_text_alone(
    here: Path, run: Command, dry: tuple[str, ...]
) -> None:
    answer = run("rewrite", ".", *dry, "--summary", "-")
    assert answer.out.startswith("## Migrate from FSDP1 to FSDP2\n")
    assert "diff --git" not in answer.out
    assert "Undo:" not in answer.out
    assert not (here / "-").exists()


def test_the_verdict_is_told(here: Path, run: Command) -> None:
    (here / "verdict.json").write_text(json.dumps(VERDICT))
    run("rewrite", ".", "--summary", "pr.md", "--verdict", "verdict.json")
    told = section((here / "pr.md").read_text(), "Does it train the same?")
    assert "**PASS, same training, in a CPU simulation of CUDA**" in told
    assert "10 steps \\| with \\<b\\>loss\\</b\\>" in told
    assert "Not verified" not in told


@pytest.mark.parametrize(
    ("contents", "said"),
    [("{", "is no verdict"), ("[]", "is no verdict"), ('{"verdict": "fine"}', "is no verdict")],
)
def test_what_is_no_verdict_stops_before_anything_is_written(
    here: Path, run: Command, contents: str, said: str
) -> None:
    (here / "verdict.json").write_text(contents)
    answer = run("rewrite", ".", "--summary", "pr.md", "--verdict", "verdict.json")
    assert answer.code == 2
    assert said in answer.err
    assert (here / "train.py").read_text() == TRAIN
    assert not (here / "pr.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--verdict", "v.json"), "--verdict goes into"),
        (("--summary", "no/pr.md"), "no is no directory"),
        (("--summary", "pr.md", "--verdict", "none.json"), "none.json: No such file"),
    ],
)
def test_wrong_options_stop_before_anything_is_written(
    here: Path, run: Command, arguments: tuple[str, ...], said: str
) -> None:
    answer = run("rewrite", ".", *arguments)
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert (here / "train.py").read_text() == TRAIN


def test_a_summary_through_a_link_out_of_the_project_is_refused(
    here: Path, run: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "file"
    target.write_text("kept")
    (here / "pr.md").symlink_to(target)
    answer = run("rewrite", ".", "--summary", "pr.md")
    assert answer.code == 2
    assert target.read_text() == "kept"
    assert (here / "train.py").read_text() == TRAIN


def test_the_projects_own_entry_is_what_to_run(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.fsdp-migrate.verify]\nmodel = "net:build"\nshard = "net:wrap"\n'
    )
    subprocess.run(["git", "init", "-q", "."], cwd=here, check=True)
    subprocess.run(["git", "add", "."], cwd=here, check=True)
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *author, "commit", "-qm", "first"], cwd=here, check=True)
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, check=True, capture_output=True
    ).stdout.decode()
    run("rewrite", ".", "--summary", "pr.md")
    text = (here / "pr.md").read_text()
    assert f"fsdp-migrate verify --before {revision.strip()}\n" in text


def test_nothing_to_migrate_says_so(here: Path, run: Command) -> None:
    (here / "train.py").write_text("import torch\n")
    run("rewrite", ".", "--summary", "pr.md")
    assert "No FSDP1 found in 1 file." in (here / "pr.md").read_text()


def test_markup_in_names_stays_text(here: Path, run: Command) -> None:
    (here / "train.py").rename(here / "a|b`<i>@me.py")
    run("rewrite", ".", "--summary", "pr.md")
    for line in (here / "pr.md").read_text().splitlines():
        assert not ("<i>" in line and "`" not in line), line


def test_places_in_messages_are_lines_of_the_new_file(here: Path, run: Command) -> None:
    run("rewrite", ".", "--no-partial", "--summary", "pr.md")
    after = (here / "train.py").read_text().splitlines()
    line = next(n for n, each in enumerate(after, 1) if "keep_vars" in each)
    assert f"held back with train.py:{line} (FSDP302)" in (here / "pr.md").read_text()


def test_guards_are_told(here: Path, run: Command) -> None:
    run("rewrite", ".", "--summary", "pr.md")
    text = (here / "pr.md").read_text()
    after = (here / "train.py").read_text().splitlines()
    line = next(n for n, each in enumerate(after, 1) if "keep_vars" in each and "#" not in each)
    assert f"it raises at train.py:{line}" in text


def test_the_same_project_in_json_has_no_new_keys(here: Path, run: Command) -> None:
    told = json.loads(run("check", ".", "--format", "json", "--exit-zero").out)
    assert set(told) == {
        *("schema", "sites", "files", "markers", "unused_ignores", "hazards", "not_followed"),
        *("held_back", "changes", "requirements"),
        *("summary", "problems", "notes"),
    }
