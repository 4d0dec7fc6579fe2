"""What people and programs read in the reports of ``check``."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.planning import pages
from tests.helpers.commandline import ROOT, Command
from tests.helpers.terminal import at_terminal
from tests.syntax.test_notebooks import document

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
WRAPS = f"{HEAD}\nmodel = FSDP(net)\n"
MIXED = f"""{HEAD}from torch.distributed.fsdp import ShardingStrategy

model = FSDP(
    net,
    sharding_strategy=ShardingStrategy.NO_SHARD,
)
state = model.state_dict(keep_vars=True)
"""
GUARDED = f"{WRAPS}state = model.state_dict(keep_vars=True)\n"


def sites(run: Command, *arguments: str) -> list[dict[str, object]]:
    answer = run("check", "--format", "json", *arguments)
    found: list[dict[str, object]] = json.loads(answer.out)["sites"]
    return found


# -- what is checked ------------------------------------------------------------------------------


def test_here_is_what_is_checked_by_itself(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    assert run("check").out == run("check", ".").out
    command = [sys.executable, "-m", "fsdp_migrate", "check"]
    answer = subprocess.run(command, cwd=here, capture_output=True, check=False, env=env())
    assert answer.returncode == 1
    assert answer.stdout.decode() == run("check").out


def env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_standard_input_is_a_file(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(text: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run("check", *arguments, "-").out

    said = typed(MIXED)
    (here / "a.py").write_text(MIXED)
    file = run("check", "a.py").out
    assert said.replace(" -:", " a.py:") == re.sub("(?m)^Next:.*\n", "", file)
    assert "no FSDP1 found in 1 file" in typed("import torch\n")
    changes = json.loads(typed(WRAPS, "--format", "json"))["changes"]
    assert [change["path"] for change in changes] == ["-"]
    assert run("check", "-", "a.py").code == 2


# -- what is said ---------------------------------------------------------------------------------


def test_review_is_told_from_what_is_rewritten(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MIXED)
    out = run("check", "--format", "concise").out
    assert re.search(r"a\.py:4:9: FSDP101 \[\*\] ", out)
    assert re.search(r": FSDP201 \[review\] ", out)
    assert "FSDP201  [review]" in run("check", "--statistics").out
    github = run("check", "--format", "github").out
    assert "title=FSDP201 (review)::" in github


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (".",),
        ("--no-partial", "a b.py"),
        ("--select", "fsdp1", "--leave", "FSDP306", "--target-torch", "2.8", "--no-configs", "."),
    ],
)
def test_what_is_next_can_be_typed(here: Path, run: Command, arguments: tuple[str, ...]) -> None:
    (here / "a b.py").write_text(WRAPS)
    following = run("check", *arguments).out.splitlines()[-1]
    assert following.startswith("Next: fsdp-migrate rewrite ")
    rewritten = run(*shlex.split(following)[2:])
    assert rewritten.code == 0, rewritten.err
    assert "fully_shard" in (here / "a b.py").read_text()


def test_what_is_next_where_nothing_can_be_done(here: Path, run: Command) -> None:
    (here / "a b.py").write_text(GUARDED)
    following = run("check", "--no-partial").out.splitlines()[-1]
    explained = run(*shlex.split(following)[2:])
    assert "FSDP302" in explained.out


def test_what_is_next_after_a_rewrite(here: Path, run: Command) -> None:
    (here / "model.py").write_text(f"{HEAD}\n\ndef build(net):\n    return FSDP(net)\n")
    (here / "train it.py").write_text(
        "from model import build\n\nif __name__ == '__main__':\n    build(None).parameters()\n"
    )
    out = run("rewrite", ".").out
    assert "Next: fsdp-migrate verify 'train it.py'\n" in out
    assert out.endswith("Undo: fsdp-migrate undo\n")


def test_what_is_next_is_the_script_that_trains_not_what_it_imports(
    here: Path, run: Command
) -> None:
    (here / "score.py").write_text("if __name__ == '__main__':\n    print('scores')\n")
    (here / "train.py").write_text(
        f"import score\n{HEAD}\nmodel = FSDP(net)\nfor batch in loader:\n    model(batch)\n"
    )
    assert "Next: fsdp-migrate verify train.py\n" in run("rewrite", ".").out


BUILDS = f"{HEAD}\n\ndef build(net):\n    return FSDP(net)\n"
STEP = "    loss.backward()\n"
MAIN = "if __name__ == '__main__':\n    main()\n"
PROGRAMS = {
    "a file of conversions beside a script that shards": (
        {
            "export.py": f"from train import model\n{MAIN}",
            "train.py": f"{HEAD}\nmodel = FSDP(net)\nwhile True:\n{STEP}",
        },
        "verify train.py",
    ),
    "what measures beside what trains": (
        {
            "model.py": BUILDS,
            "bench.py": f"from model import build\n{MAIN}",
            "pretrain.py": f"from model import build\ndef main():\n{STEP}\n{MAIN}",
        },
        "verify pretrain.py",
    ),
    "several that train": (
        {
            "model.py": BUILDS,
            "cheap_training.py": f"from model import build\ndef main():\n{STEP}\n{MAIN}",
            "train_fsdp.py": f"from model import build\ndef main():\n{STEP}\n{MAIN}",
        },
        "verify train_fsdp.py",
    ),
    "several imports away": (
        {
            "model.py": BUILDS,
            "trainer.py": f"from model import build\ndef run():\n{STEP}",
            "main.py": f"import trainer\n{MAIN}",
        },
        "verify main.py",
    ),
    "tests are no program": (
        {"model.py": BUILDS, "test_model.py": f"from model import build\n{MAIN}"},
        "check .",
    ),
    "nothing can be started": ({"model.py": BUILDS}, "check ."),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_what_is_next_fits(here: Path, run: Command, case: str) -> None:
    files, wanted = PROGRAMS[case]
    for name, text in files.items():
        (here / name).write_text(text)
    said = run("rewrite", ".").out
    assert f"Next: fsdp-migrate {wanted}\n" in said
    if wanted == "check .":
        assert run("check", ".").code == 0


def test_what_is_next_where_nothing_can_be_started_but_changes_can_be_seen(
    here: Path, run: Command
) -> None:
    (here / "model.py").write_text(BUILDS)
    committed()
    assert "Next: git diff\n" in run("rewrite", ".").out


SAVES_ON_ONE_RANK = f"""{HEAD}
from torch.distributed.fsdp import FullStateDictConfig, StateDictType


class Trainer:
    def __init__(self, net, rank):
        self.rank = rank
        self.model = FSDP(net)

    def step(self):
        if self.rank == 0:
            self.save()

    def save(self):
        if self.rank == 0:
            # Configure state dict collection (gather on rank 0, offload to CPU)
            policy = FullStateDictConfig(
                offload_to_cpu=True,
                rank0_only=True
            )

            # Collect full state dict
            with FSDP.state_dict_type(
                self.model,
                StateDictType.FULL_STATE_DICT,
                policy
            ):
                state = self.model.state_dict()
            torch.save(state, "a.pt")
"""


def test_what_is_written_has_more_than_what_goes(here: Path, run: Command) -> None:
    """The statement that stands below a comment is told of in two pieces."""
    (here / "train.py").write_text(SAVES_ON_ONE_RANK)
    sites = json.loads(run("check", "--format", "json").out)["sites"]
    [site] = [s for s in sites if s["code"] == "FSDP302" and s["outcome"] == "review"]
    assert "get_model_state_dict(" in "".join(w["text"] for w in site["mend"]["written"])


def committed() -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *names, "commit", "-qm", "x"], check=True)


def test_what_is_next_compares_with_the_original(here: Path, run: Command) -> None:
    """Without a revision there is nothing to compare: the tree is rewritten."""
    (here / "train.py").write_text(
        f"{HEAD}\nmodel = FSDP(net)\nfor batch in loader: model(batch)\n"
    )
    committed()
    assert "Next: fsdp-migrate verify train.py --before HEAD\n" in run("rewrite", ".").out
    assert "give --before HEAD where it was rewritten" in run("verify", "train.py").err


def test_what_is_next_starts_a_package_by_its_name(here: Path, run: Command) -> None:
    """A relative import does not work in a file that is started by its path."""
    (here / "lens").mkdir()
    (here / "lens/__init__.py").touch()
    (here / "lens/__main__.py").write_text(
        f"from . import a\n{HEAD}\nif __name__ == '__main__':\n    model = FSDP(net)\n"
    )
    assert "Next: fsdp-migrate verify module:lens\n" in run("rewrite", ".").out


def test_partial_is_shown_before_it_is_done(here: Path, run: Command) -> None:
    (here / "a.py").write_text(GUARDED)
    assert "Held back" not in run("check", "--partial").out
    out = run("check", "--no-partial").out
    assert "Held back: 1 site by a.py:4; settle it; with --partial they are migrated" in out


def test_what_links_models_that_wait_together_is_said(here: Path, run: Command) -> None:
    (here / "a.py").write_text(
        f"{HEAD}from torch.distributed.fsdp import MixedPrecision\n\n"
        "half = MixedPrecision()\n"
        "one = FSDP(net, mixed_precision=half)\n"
        "two = FSDP(other, mixed_precision=half)\n"
        "state = one.state_dict(keep_vars=True)\n"
    )
    out = run("check", "--no-partial").out
    assert "by a.py:7; settle it" in out
    assert "What links their models, so that they go together: a.py:4" in out
    held = json.loads(run("check", "--no-partial", "--format", "json").out)["held_back"]
    assert held[0]["linked"] == ["a.py:4"]


def test_the_report_goes_to_several_files(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    files = ("r.json", "r.sarif", "r.md", "r.html", "r.txt")
    answer = run("check", *(word for name in files for word in ("-o", name)))
    assert answer.code == 1
    assert answer.out == ""
    assert "1 to rewrite" in answer.err
    assert json.loads((here / "r.json").read_text())["schema"] == 1
    assert json.loads((here / "r.sarif").read_text())["version"] == "2.1.0"
    assert (here / "r.md").read_text().startswith("## ")
    assert "<html" in (here / "r.html").read_text()
    assert "FSDP101 [*]" in (here / "r.txt").read_text()


def test_totals_in_githubs_log(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MIXED)
    last = run("check", "--format", "github").out.splitlines()[-1]
    assert last.startswith(
        "::notice title=fsdp-migrate::3 sites: 1 to rewrite, 1 to review, 1 left"
    )


def test_explain_says_what_check_says(here: Path, run: Command) -> None:
    (here / "model.py").write_text(f"{HEAD}\n\ndef build(net):\n    return FSDP(net)\n")
    (here / "save.py").write_text(
        "from model import build\n\nmodel = build(None)\nstate = model.state_dict(keep_vars=True)\n"
    )
    assert "save.py:4:9: FSDP302" in run("check", "--format", "concise").out
    answer = run("explain", "save.py:4")
    assert answer.code == 1
    assert "FSDP302" in answer.out
    (here / "model.py").write_text(
        f"{HEAD}\nmodel = FSDP(\n    net,\n    use_orig_params=True,\n)\n"
    )
    assert "FSDP101 [*] FSDP()" in run("explain", "model.py:6").out


# -- places ---------------------------------------------------------------------------------------


def test_where_a_site_ends(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MIXED)
    call, setting, _ = sites(run)
    assert (call["line"], call["column"]) == (4, 9)
    assert (call["end_line"], call["end_column"]) == (7, 2)
    assert (setting["end_line"], setting["end_column"]) == (6, 48)
    out = run("check", "--format", "github").out
    assert "line=4,col=9,endLine=7,endColumn=2," in out
    sarif = json.loads(run("check", "--format", "sarif").out)
    region = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 4, "startColumn": 9, "endLine": 7, "endColumn": 2}


def test_places_in_notebooks(here: Path, run: Command) -> None:
    cells = [
        "x = 1",
        f"{HEAD}\nmodel = FSDP(net)",
        "y = 1\nstate = model.state_dict(keep_vars=True)",
    ]
    text = json.dumps(document(*cells), indent=1)
    (here / "a.ipynb").write_text(text)
    line = text.split("\n").index(next(t for t in text.split("\n") if "state_dict" in t)) + 1
    for form, said in {
        "full": "--> a.ipynb:cell 3:2:9",
        "concise": "a.ipynb:cell 3:2:9: FSDP302",
        "github": f"file=a.ipynb,line={line},title=FSDP302::cell 3, line 2: ",
        "markdown": "`a.ipynb:cell 3:2`",
        "html": "cell 3:2",
    }.items():
        assert said in run("check", "--format", form, "--no-partial").out, form
    site = sites(run, "--no-partial")[-1]
    assert (site["cell"], site["line"], site["file_line"]) == (3, 2, line)
    run_ = json.loads(run("check", "--format", "sarif", "--no-partial").out)["runs"][0]
    location = next(r for r in run_["results"] if r["ruleId"] == "FSDP302")["locations"][0]
    assert location["physicalLocation"]["region"] == {"startLine": line}
    assert location["logicalLocations"] == [{"fullyQualifiedName": "cell 3, line 2, column 9"}]
    answer = run("rewrite", ".")
    assert "made at a.ipynb:cell 2:3; it raises at a.ipynb:cell 3:2" in answer.out


def test_markers_and_errors_in_notebooks(here: Path, run: Command) -> None:
    marker = "# TODO(fsdp-migrate FSDP201): look at it"
    text = json.dumps(document("x = 1", f"y = 2\n{marker}\nz = 3"), indent=1)
    (here / "a.ipynb").write_text(text)
    (here / "b.py").write_text(WRAPS)
    line = 1 + next(n for n, each in enumerate(text.split("\n")) if "TODO" in each)
    assert (
        "a.ipynb:cell 2:2:1: FSDP201 marker: look at it" in run("check", "--format", "concise").out
    )
    assert f"file=a.ipynb,line={line},title=FSDP201" in run("check", "--format", "github").out
    broken = json.dumps(document("x = 1", f"{HEAD}\ny = ("), indent=1)
    (here / "a.ipynb").write_text(broken)
    line = 1 + next(n for n, each in enumerate(broken.split("\n")) if "y = (" in each)
    assert f"::error file=a.ipynb,line={line}::" in run("check", "--format", "github").out


# -- changes and links ----------------------------------------------------------------------------


def applied(text: str, edits: list[dict[str, object]]) -> str:
    lines = text.splitlines(keepends=True)
    for edit in reversed(edits):
        lines[int(str(edit["line"])) - 1 : int(str(edit["end_line"])) - 1] = [str(edit["text"])]
    return "".join(lines)


def test_json_has_the_change(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MIXED)
    (here / "b.py").write_text(WRAPS)
    changes = json.loads(run("check", "--format", "json").out)["changes"]
    made = {c["path"]: applied((here / c["path"]).read_text(), c["edits"]) for c in changes}
    run("rewrite", ".")
    assert made == {name: (here / name).read_text() for name in ("a.py", "b.py")}


def test_sarif_has_the_change(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MIXED)
    (here / "b.py").write_text(WRAPS)
    results = json.loads(run("check", "--format", "sarif").out)["runs"][0]["results"]
    (fix,) = results[0]["fixes"]
    assert [c["artifactLocation"]["uri"] for c in fix["artifactChanges"]] == ["a.py", "b.py"]
    made = {}
    for change in fix["artifactChanges"]:
        edits = [
            {
                "line": each["deletedRegion"]["startLine"],
                "end_line": each["deletedRegion"]["endLine"],
                "text": each["insertedContent"]["text"],
            }
            for each in change["replacements"]
        ]
        name = change["artifactLocation"]["uri"]
        made[name] = applied((here / name).read_text(), edits)
    run("rewrite", ".")
    assert made == {name: (here / name).read_text() for name in ("a.py", "b.py")}


def test_rules_have_their_pages_as_addresses(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a.py").write_text(WRAPS)
    monkeypatch.setattr(pages, "HOME", "https://code.example/us/fsdp-migrate")
    address = sites(run)[0]["url"]
    driver = json.loads(run("check", "--format", "sarif").out)["runs"][0]["tool"]["driver"]
    assert driver["rules"][0]["helpUri"] == address
    assert (ROOT / "rules" / str(address).partition("/rules/")[2]).is_file()


def test_without_a_home_no_report_has_an_address(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    assert sites(run)[0]["url"] == ""
    assert "helpUri" not in run("check", "--format", "sarif").out
    assert "://" not in run("check", "--format", "markdown").out


def test_terminals_that_have_links_get_them(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.py").write_text(WRAPS)
    monkeypatch.setenv("TERM_PROGRAM", "WezTerm")
    shown = at_terminal(here, "check", "--format", "concise", answers="", colour=True).out
    uri = (here / "a.py").as_uri()
    assert f"\x1b]8;;{uri}\x1b\\a.py:3:9\x1b]8;;\x1b\\: FSDP101" in shown
    monkeypatch.setenv("TERM_PROGRAM", "Apple_Terminal")
    for name in ("WT_SESSION", "KONSOLE_VERSION", "VTE_VERSION"):
        monkeypatch.delenv(name, raising=False)
    plain = at_terminal(here, "check", "--format", "concise", answers="", colour=True).out
    assert "\x1b]8" not in plain
