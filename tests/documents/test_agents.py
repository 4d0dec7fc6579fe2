"""What coding agents are told is what they get."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.planning import pages
from fsdp_migrate.verify.compare import blame
from fsdp_migrate.verify.compare.judge import judge
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.report import json as as_json
from fsdp_migrate.verify.report.model import Report, Verdict
from tests.documents.schemas import SCHEMAS, problems
from tests.documents.snippets import of_page
from tests.helpers.commandline import DEMO, Command
from tests.helpers.migrating import REGISTRY
from tests.tools.documents import ROOT
from tests.verify.recordings import evidence

AGENTS = ROOT / "docs" / "agents.md"
FSDP1_STAYS = "with enable_wrap(wrapper_cls=FSDP):\n    model = Net()"
SKILL = ROOT / "skills" / "fsdp-migrate" / "SKILL.md"


def checked(run: Command) -> Any:
    """The report of a check as an agent asks for it."""
    run("check", ".", "-o", "check.json")
    document = json.loads(Path("check.json").read_text(encoding="utf-8"))
    assert problems("check", document) == []
    return document


# --- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["FSDP101", "FSDP302", "FSDP306", "FSDP401", "FSDP402", "FSDP403", "FSDP408", "FSDP415"]
)
def test_what_is_for_you_has_what_it_takes(code: str, here: Path, run: Command) -> None:
    """All examples of a rule's page, each a project of its own."""
    for number, example in enumerate(REGISTRY.rules[code].examples):
        folder = here / f"example_{number}"
        folder.mkdir()
        (folder / "example.py").write_text(example.before, encoding="utf-8")
    document = checked(run)
    for_you = [s for s in document["sites"] if s["outcome"] != "rewritten" and not s["ignored"]]
    assert for_you
    for site in document["sites"]:
        assert ("mend" in site) == (site in for_you)
    for site in for_you:
        assert site["message"]
        assert site["help"] or site["held"]
        assert site["url"] == pages.url(site["code"], ())
        assert site["mend"]["explain"] == f"fsdp-migrate explain {site['code']}"
        assert site["mend"]["checks"] == list(blame.deciding(site["code"]))
    # One comment may speak for several places in a row.
    written = [bool(site["mend"]["written"]) for site in for_you if site["outcome"] == "review"]
    assert sum(written) >= len(written) / 2


def test_what_is_written_at_a_review_is_what_rewrite_writes(here: Path, run: Command) -> None:
    source = next(s.text for s in of_page(ROOT / "docs" / "decides.md") if s.language == "python")
    (here / "example.py").write_text(source)
    (site,) = (s for s in checked(run)["sites"] if s["outcome"] == "review")
    (edit,) = site["mend"]["written"]
    run("rewrite", ".", "--allow-dirty")
    assert edit["text"] in (here / "example.py").read_text()
    assert edit["line"] <= site["line"] < edit["end_line"]


def test_after_a_rewrite_markers_have_what_sites_had(here: Path, run: Command) -> None:
    """Else nothing would tell an agent, which checks again, of what is left to judge."""
    source = next(s.text for s in of_page(ROOT / "docs" / "decides.md") if s.language == "python")
    (here / "example.py").write_text(source)
    (site,) = (s for s in checked(run)["sites"] if s["outcome"] == "review")
    run("rewrite", ".", "--allow-dirty")
    again = run("check", ".", "-o", "check.json")
    assert again.code == 0
    assert "1 marker in the code to settle and remove" in again.out + again.err
    (marker,) = checked(run)["markers"]
    lines = (here / "example.py").read_text().splitlines()
    assert lines[marker["line"] - 1].lstrip().startswith("# TODO(fsdp-migrate")
    assert marker["target"] == marker["end_line"] + 1
    assert not lines[marker["target"] - 1].lstrip().startswith("#")
    assert (marker["code"], marker["url"]) == (site["code"], site["url"])
    assert marker["mend"] == {**site["mend"], "written": []}
    assert marker["listed"] is False


def test_a_marker_above_nothing_or_of_no_rule_has_the_form(here: Path, run: Command) -> None:
    (here / "example.py").write_text(
        "import torch.distributed.fsdp\n# TODO(fsdp-migrate FSDP999): Why.\n"
    )
    (marker,) = checked(run)["markers"]
    assert "target" not in marker
    assert (marker["mend"]["example"], marker["mend"]["checks"]) == (None, [])


def test_a_marker_of_a_site_that_is_still_there_says_so(here: Path, run: Command) -> None:
    source = next(e.before for e in REGISTRY.rules["FSDP104"].examples if FSDP1_STAYS in e.after)
    (here / "example.py").write_text(source)
    run("rewrite", ".", "--allow-dirty")
    document = checked(run)
    assert document["sites"]
    assert [marker["listed"] for marker in document["markers"]] == [True]


def test_a_marker_in_a_notebook_has_lines_of_its_cell(here: Path, run: Command) -> None:
    marker = "# TODO(fsdp-migrate FSDP401): One.\n#     And two."
    sources = ["import torch.distributed.fsdp", f"a = 1\n{marker}\nb = 2", marker, "c = 3"]
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in sources
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (here / "n.ipynb").write_text(json.dumps(notebook))
    first, second = checked(run)["markers"]
    assert (first["cell"], first["line"], first["end_line"], first["target"]) == (2, 2, 3, 4)
    assert (second["cell"], second["line"], second["end_line"]) == (3, 1, 2)
    assert "target" not in second  # the next cell may run at any time


def test_a_torch_that_is_too_old_is_told(here: Path, run: Command) -> None:
    """What `rewrite` says on the screen of requirements, and they alone, is in the JSON as well."""
    (here / "example.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def build(net):\n    return FSDP(net)\n"
    )
    assert checked(run)["requirements"] == []
    (here / "requirements.txt").write_text("numpy\ntorch>=2.3\n")
    (here / "README.md").write_text("```sh\npip install torch==2.5.0\n```\n")
    found = checked(run)["requirements"]
    assert {(r["path"], r["line"], r["outcome"]) for r in found} == {
        ("requirements.txt", 2, "rewritten"),
        ("README.md", 2, "left"),
    }


def test_a_finished_project_has_nothing_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "demo")
    monkeypatch.chdir(tmp_path / "demo")
    assert not [site for site in checked(run)["sites"] if "mend" in site]


def test_notebooks_and_problems_have_the_form(here: Path, run: Command) -> None:
    cell = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = FSDP(net, **a)"
    notebook = {
        "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "source": cell}],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (here / "n.ipynb").write_text(json.dumps(notebook))
    (here / "broken.py").write_text(f"{cell}(")
    document = checked(run)
    assert {site["cell"] for site in document["sites"]} == {1}
    assert document["problems"]


def test_every_rule_that_leaves_anything_shows_how_it_is_written() -> None:
    """Or has no other examples than of what is left."""
    without = {
        page.code
        for page in pages.pages()
        if all(b.facts.get("Outcome") == "left" for b in page.blocks[pages.EXAMPLES])
    }
    assert len(without) < 12, sorted(without)


# --- verify --------------------------------------------------------------------------------------


def verdict(verdict: Verdict, **changes: Any) -> Any:
    """What `verify -o verdict.json` writes."""
    given = {
        "says": "why",
        "program": "train.py",
        "before": "a",
        "after": "b",
        "setting": "2 ranks",
    }
    document = json.loads(as_json.render(Report(verdict=verdict, **{**given, **changes})))
    assert problems("verify", document) == []
    return document


def test_a_check_that_fails_says_what_to_look_at() -> None:
    gates = judge(evidence(scatters=4)).gates
    (step,) = verdict(Verdict.DIFFERENT, gates=gates)["next"]
    assert step["what"] == "a check"
    assert step["check"] == "collectives"
    assert "no_sync was lost" in step["hint"]


def test_a_crash_says_where() -> None:
    ending = Ending(
        end=End.CRASHED,
        folder=Path("f"),
        logs=Path("l"),
        seconds=1.0,
        says="RuntimeError: mixed",
        traceback=('File "train.py", line 3', "RuntimeError: mixed"),
    )
    after = verdict(Verdict.AFTER_FAILED, endings={"after": ending})["next"]
    assert [step["what"] for step in after] == ["an error"]
    assert after[0]["places"][0] == 'File "train.py", line 3'
    before = verdict(Verdict.BEFORE_FAILED, endings={"before": ending})["next"]
    assert [step["what"] for step in before] == ["the original"]
    assert "make the program run as it was" in before[0]["hint"]


def test_what_never_ran_is_named_beside_a_pass_as_well() -> None:
    (step,) = verdict(Verdict.SAME, not_executed=("train.py:8-9",))["next"]
    assert step["places"] == ["train.py:8-9"]
    assert verdict(Verdict.SAME)["next"] == []


def test_where_nothing_was_recorded_the_sentence_is_what_there_is() -> None:
    (step,) = verdict(Verdict.UNRECORDED)["next"]
    assert (step["what"], step["says"]) == ("the run", "why")


# --- what is told --------------------------------------------------------------------------------


def test_the_samples_of_the_page_have_the_form() -> None:
    site, steps = (json.loads(s.text) for s in of_page(AGENTS) if s.language == "json")
    known = json.loads((SCHEMAS / "check.json").read_text())["$defs"]
    assert set(site) <= set(known["site"]["properties"])
    assert set(site["mend"]) == set(known["mend"]["properties"])
    whole = verdict(Verdict.DIFFERENT)
    assert problems("verify", {**whole, "next": steps}) == []


def test_the_skill_can_be_loaded_and_names_what_there_is() -> None:
    text = SKILL.read_text(encoding="utf-8")
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", text)
    assert head is not None
    assert head[1] == SKILL.parent.name
    assert len(head[2]) <= 1024
    assert len(text.splitlines()) < 100
    keys = {key for name in ("check", "verify") for key in re.findall(r'"(\w+)":', _schema(name))}
    for word in re.findall(r"`(?:mend\.)?([a-z_]+)`(?! below)", text):
        assert word in keys, word


def _schema(name: str) -> str:
    return (SCHEMAS / f"{name}.json").read_text(encoding="utf-8")
