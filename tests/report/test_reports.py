"""The formats of ``check``: each one whole, and nothing of the source in it as markup."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate import report
from fsdp_migrate.report import markdown, page, text
from fsdp_migrate.report.event import Coverage
from tests.helpers.commandline import DEMO, Command

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
WRAPS = f"{HEAD}\ndef build(model):\n    return FSDP(model)\n"
# Left, held back and ignored, to review, and text that would be markup.
MIXED = f"""import torch
from torch.distributed.fsdp import MixedPrecision
{HEAD}
class Mine(FSDP):
    def state_dict(self):
        return super().state_dict()


def build(net, body, batches):
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = FSDP(net, mixed_precision=half)
    name = "<script>alert(1)</script> | `a` *b* @someone https://x.y"; other = FSDP(body)
    with net.no_sync():
        for batch in batches:
            net(batch).sum().backward()
    net.zero_grad(); return net, other


legacy = FSDP(old)  # fsdp-migrate: leave[FSDP101] <b>@someone</b>
"""
REFUSED = f"""{HEAD}
def build(model):
    model = FSDP(model, ignored_modules=[1], ignored_states=[2])
    return model.clip_grad_norm_(1.0)
"""
MARKED = """from torch.distributed.fsdp import fully_shard

# TODO(fsdp-migrate FSDP402): Look at <this> | that.
fully_shard(net)
"""


@pytest.fixture
def mixed(here: Path) -> Path:
    (here / "mixed.py").write_text(MIXED)
    (here / "refused.py").write_text(REFUSED)
    (here / "marked.py").write_text(MARKED)
    (here / "odd <b>&`|.py").write_text(WRAPS)
    return here


@pytest.fixture
def demo(here: Path) -> Path:
    shutil.copytree(DEMO / "before", here, dirs_exist_ok=True)
    return here


# -- which one, and where -------------------------------------------------------------------------


@pytest.mark.parametrize("name", report.FORMATS)
def test_every_format_goes_to_a_file_as_to_the_screen(mixed: Path, run: Command, name: str) -> None:
    shown = run("check", "--format", name, ".")
    assert shown.code == 1
    assert shown.out
    written = run("check", "--format", name, "--output", "out.bin", ".")
    assert written.code == 1
    assert not written.out
    assert (mixed / "out.bin").read_text("utf-8") == shown.out


@pytest.mark.parametrize("name", report.FORMATS)
def test_every_format_says_that_there_is_nothing(here: Path, run: Command, name: str) -> None:
    (here / "a.py").write_text("import torch\n")
    answer = run("check", "--format", name, ".")
    assert answer.code == 0
    assert "FSDP101" not in answer.out


@pytest.mark.parametrize("name", report.FORMATS)
def test_every_format_tells_of_a_file_that_is_broken(here: Path, run: Command, name: str) -> None:
    (here / "a.py").write_text(WRAPS)
    (here / "bad.py").write_text(f"{HEAD}x = (\n")
    answer = run("check", "--format", name, ".")
    assert answer.code == 2
    assert "bad.py" in (answer.out if name not in {"full", "concise"} else answer.err)
    assert "a.py" in answer.out


@pytest.mark.parametrize("name", report.FORMATS)
def test_a_name_that_is_no_text_is_no_reason_to_fail(here: Path, run: Command, name: str) -> None:
    Path(os.fsdecode(b"a\xff.py")).write_text(WRAPS)
    assert run("check", "--format", name, ".").code == 1
    assert run("check", "--format", name, "-o", "out", ".").code == 1
    text = (here / "out").read_text("utf-8")
    if name in {"json", "sarif"}:
        assert json.loads(text)


@pytest.mark.parametrize(
    ("file", "begins"),
    [
        ("out.json", '{\n  "schema"'),
        ("out.sarif", '{\n  "$schema"'),
        ("out.md", "## fsdp-migrate"),
        ("out.HTML", "<!doctype html>"),
        ("out.txt", "FSDP101 [*] FSDP()"),
        ("out", "FSDP101 [*] FSDP()"),
    ],
)
def test_the_suffix_says_the_format(here: Path, run: Command, file: str, begins: str) -> None:
    (here / "a.py").write_text(WRAPS)
    assert run("check", "--output", file, ".").code == 1
    assert (here / file).read_text().startswith(begins)
    assert run("check", "--format", "concise", "--output", file, ".").code == 1
    assert (here / file).read_text().startswith("a.py:5:12: ")


def test_reports_are_the_same_twice_and_change_nothing(mixed: Path, run: Command) -> None:
    before = {p: p.read_bytes() for p in mixed.iterdir()}
    for name in report.FORMATS:
        assert run("check", "--format", name, ".").out == run("check", "--format", name, ".").out
    assert {p: p.read_bytes() for p in mixed.iterdir()} == before


# -- shares ---------------------------------------------------------------------------------------


def test_full_has_every_files_share(mixed: Path, run: Command) -> None:
    out = run("check", ".").out
    assert re.search(r"^mixed\.py +\d of \d +[\d.]+ %  1 ignored$", out, re.MULTILINE)
    assert re.search(r"^refused\.py +0 of \d +0 %$", out, re.MULTILINE)
    assert "marked.py  " not in out
    assert "%" not in run("check", "refused.py").out.replace("0 % migrated", "")


def test_json_has_every_files_share(mixed: Path, run: Command) -> None:
    document = json.loads(run("check", "--format", "json", ".").out)
    files = {f["path"]: f for f in document["files"]}
    assert files["refused.py"]["coverage"] == 0
    assert files["mixed.py"]["ignored"] == 1
    for key in ("sites", "rewritten", "review", "left", "ignored"):
        assert sum(f[key] for f in files.values()) == document["summary"][key]
    for of in (*files.values(), document["summary"]):
        assert of["rewritten"] + of["review"] + of["left"] == of["sites"]


def test_all_is_said_of_all_only() -> None:
    assert Coverage(sites=10_000, rewritten=9_999, left=1).percent == "99.9"
    assert Coverage(sites=3, rewritten=1, review=1, left=1).percent == "66.6"
    assert Coverage(sites=3, rewritten=2, left=1, ignored=1).percent == "100"
    assert Coverage(sites=2, left=2).percent == "0"
    assert Coverage().percent == "100"


@pytest.mark.parametrize(
    ("own", "percent", "enough"),
    [
        (Coverage(sites=100, rewritten=29, left=71), 29, True),
        (Coverage(sites=100, rewritten=29, left=71), 29.01, False),
        (Coverage(sites=3, rewritten=2, left=1), 66.6, True),
        (Coverage(sites=3, rewritten=2, left=1), 66.7, False),
        (Coverage(sites=1000, rewritten=999, left=1), 100, False),
        (Coverage(sites=4, review=2, left=2, ignored=2), 100, True),
        (Coverage(sites=4, left=4), 0, True),
        (Coverage(), 100, True),
    ],
)
def test_what_is_enough(own: Coverage, percent: float, enough: bool) -> None:
    assert own.reaches(percent) is enough


# -- SARIF ----------------------------------------------------------------------------------------

# What the schema of SARIF 2.1.0 says of the objects that are written: it allows no other property.
# Name -> type; a name in upper case is another of these objects, a list of one holds those.
SCHEMA: dict[str, dict[str, Any]] = {
    "LOG": {"$schema": str, "version": str, "runs": ["RUN"]},
    "RUN": {
        "tool": "TOOL",
        "invocations": ["INVOCATION"],
        "originalUriBaseIds": {"*": "ARTIFACT_LOCATION"},
        "columnKind": str,
        "results": ["RESULT"],
        "properties": dict,
    },
    "TOOL": {"driver": "COMPONENT"},
    "COMPONENT": {"name": str, "version": str, "rules": ["RULE"]},
    "RULE": {
        "id": str,
        "name": str,
        "shortDescription": "TEXT",
        "fullDescription": "TEXT",
        "help": "TEXT",
        "helpUri": str,
        "properties": dict,
    },
    "TEXT": {"text": str, "markdown": str},
    "INVOCATION": {"executionSuccessful": bool, "toolExecutionNotifications": ["NOTIFICATION"]},
    "NOTIFICATION": {"level": str, "message": "TEXT", "locations": ["LOCATION"]},
    "RESULT": {
        "ruleId": str,
        "ruleIndex": int,
        "level": str,
        "message": "TEXT",
        "locations": ["LOCATION"],
        "partialFingerprints": {"*": str},
        "fixes": ["FIX"],
        "properties": dict,
    },
    "FIX": {"description": "TEXT", "artifactChanges": ["CHANGE"]},
    "CHANGE": {"artifactLocation": "ARTIFACT_LOCATION", "replacements": ["REPLACEMENT"]},
    "REPLACEMENT": {"deletedRegion": "REGION", "insertedContent": "CONTENT"},
    "CONTENT": {"text": str},
    "LOCATION": {
        "physicalLocation": "PHYSICAL_LOCATION",
        "logicalLocations": ["LOGICAL_LOCATION"],
    },
    "LOGICAL_LOCATION": {"fullyQualifiedName": str},
    "PHYSICAL_LOCATION": {"artifactLocation": "ARTIFACT_LOCATION", "region": "REGION"},
    "ARTIFACT_LOCATION": {"uri": str, "uriBaseId": str, "description": "TEXT"},
    "REGION": {"startLine": int, "startColumn": int, "endLine": int, "endColumn": int},
}
REQUIRED = {
    "LOG": {"version", "runs"},
    "RUN": {"tool"},
    "TOOL": {"driver"},
    "COMPONENT": {"name"},
    "RULE": {"id", "shortDescription", "help"},  # GitHub's
    "TEXT": {"text"},
    "INVOCATION": {"executionSuccessful"},
    "NOTIFICATION": {"message"},
    "RESULT": {"message", "ruleId", "locations", "partialFingerprints"},  # GitHub's
    "LOCATION": {"physicalLocation"},
    "PHYSICAL_LOCATION": {"artifactLocation"},
    "FIX": {"artifactChanges"},
    "CHANGE": {"artifactLocation", "replacements"},
    "REPLACEMENT": {"deletedRegion"},
}


def conforms(value: Any, to: Any, where: str = "$") -> None:
    if isinstance(to, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            conforms(item, to[0], f"{where}[{number}]")
        assert len({json.dumps(item) for item in value}) == len(value) or to == ["RESULT"], where
    elif isinstance(to, dict):
        for name, item in value.items():
            conforms(item, to["*"], f"{where}.{name}")
    elif isinstance(to, str):
        assert isinstance(value, dict), where
        assert REQUIRED.get(to, set()) <= value.keys() <= SCHEMA[to].keys(), where
        for name, item in value.items():
            conforms(item, SCHEMA[to][name], f"{where}.{name}")
    else:
        assert type(value) is to, where
        if to is int:
            assert value >= (0 if where.endswith("ruleIndex") else 1), where
        if where.endswith(".level"):
            assert value in {"none", "note", "warning", "error"}


def sarif(run: Command, *arguments: str) -> dict[str, Any]:
    """The one run of a report, which is what SARIF allows."""
    document = json.loads(run("check", "--format", "sarif", *(arguments or (".",))).out)
    conforms(document, "LOG")
    assert document["version"] == "2.1.0"
    (only,) = document["runs"]
    assert only["columnKind"] == "utf16CodeUnits"
    rules = only["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == sorted({r["ruleId"] for r in only["results"]})
    for result in only["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    return dict(only)


def place(result: dict[str, Any]) -> tuple[str, int, int, int]:
    (location,) = result["locations"]
    physical = location["physicalLocation"]
    region = physical["region"]
    return (
        physical["artifactLocation"]["uri"],
        region["startLine"],
        region["startColumn"],
        region["endColumn"],
    )


def test_sarif_has_every_site_but_those_ignored(mixed: Path, run: Command) -> None:
    only = sarif(run)
    found = json.loads(run("check", "--format", "json", ".").out)
    sites = [s for s in found["sites"] if not s["ignored"]]
    assert len(sites) < len(found["sites"])
    assert len(only["results"]) == len(sites) + 1, "and the marker that has no site"
    levels = {
        (r["properties"]["outcome"], r["properties"]["held"]): r["level"]
        for r in only["results"]
        if "properties" in r
    }
    assert levels == {
        ("rewritten", False): "note",
        ("review", False): "warning",
        ("left", False): "warning",
        ("left", True): "note",
    }
    assert only["properties"]["sites"] == found["summary"]["sites"]


def test_sarif_rules_are_the_rules_own_pages(mixed: Path, run: Command) -> None:
    for each in sarif(run)["tool"]["driver"]["rules"]:
        assert each["help"]["markdown"].startswith(f"# {each['id']}: ")
        assert "## What stays for you" in each["help"]["markdown"]
        assert "\n" not in each["fullDescription"]["text"]
        assert re.fullmatch(r"([A-Z][a-z0-9]*)+", each["name"])


def test_sarif_has_the_rules_of_the_projects_own(here: Path, run: Command) -> None:
    rules = here / "rules"
    rules.mkdir()
    own = '"""Ours.\n\n## Why\nBecause.\n"""\nfrom fsdp_migrate.planning.rule import Rule\n'
    own += 'RULE = Rule(code="FSDP700", name="own", handles=("FlatParameter",))\n'
    own += "def decide(site, study):\n    return study.left(site, RULE.code, 'no', 'yes')\n"
    (rules / "FSDP700_own.py").write_text(own)
    (here / "pyproject.toml").write_text('[tool.fsdp-migrate]\nrule-paths = ["rules"]\n')
    (here / "a.py").write_text(
        "from torch.distributed.fsdp import FlatParameter\nFlatParameter()\n"
    )
    (rule,) = sarif(run, "--trust-rules", "a.py")["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"] == "Ours."


def test_sarif_counts_columns_in_utf16(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f'{HEAD}"é😀"; x = FSDP("😀😀")\n')
    (result,) = sarif(run)["results"]
    assert place(result) == ("a.py", 3, 12, 24)


def test_sarif_names_files_from_the_top_of_the_repository(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(here)], check=True)
    below = here / "a b"
    below.mkdir()
    (below / "é#.py").write_text(WRAPS)
    monkeypatch.chdir(below)
    (result,) = sarif(run)["results"]
    assert place(result)[0] == "a%20b/%C3%A9%23.py"
    (location,) = result["locations"]
    base = location["physicalLocation"]["artifactLocation"]["uriBaseId"]
    assert base in sarif(run)["originalUriBaseIds"]


def test_sarif_says_nothing_of_this_machine(mixed: Path, run: Command) -> None:
    assert str(mixed) not in run("check", "--format", "sarif", ".").out


def test_sarif_fingerprints_survive_moved_lines_and_tell_sites_apart(
    here: Path, run: Command
) -> None:
    file = here / "a.py"
    file.write_text(f"{WRAPS}\n\ndef again(model):\n    return FSDP(model)\n")
    first = [r["partialFingerprints"] for r in sarif(run)["results"]]
    assert len({json.dumps(f) for f in first}) == 2
    file.write_text(f"import os\n\n\n{file.read_text()}".replace("    return", "        return"))
    assert [r["partialFingerprints"] for r in sarif(run)["results"]] == first
    file.write_text(file.read_text().replace("FSDP(model)", "FSDP(net)"))
    assert [r["partialFingerprints"] for r in sarif(run)["results"]] != first


def test_sarif_braces_are_no_placeholders(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{HEAD}FSDP(model, **{{'device_id': 0}})\n")
    for result in sarif(run)["results"]:
        text = result["message"]["text"]
        assert not re.search(r"(?<!\{)(\{\{)*\{(?!\{)", text), text


def test_sarif_tells_of_what_could_not_be_read(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    (here / "bad.py").write_text(f"{HEAD}x = (\n")
    (invocation,) = sarif(run)["invocations"]
    assert invocation["executionSuccessful"] is False
    (told,) = invocation["toolExecutionNotifications"]
    assert told["level"] == "error"
    assert told["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "bad.py"


def test_sarif_of_nothing_is_a_whole_report(here: Path, run: Command) -> None:
    (here / "a.py").write_text("import torch\n")
    only = sarif(run)
    assert only["results"] == []
    assert only["invocations"][0]["executionSuccessful"] is True


# -- Markdown -------------------------------------------------------------------------------------


def rows(document: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line for line in document.splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]


def test_markdown_tables_are_whole(mixed: Path, run: Command) -> None:
    out = run("check", "--format", "markdown", ".").out
    tables = [p for p in out.split("\n\n") if p.startswith("|")]
    assert len(tables) == 6
    for table in tables:
        assert len({len(row) for row in rows(table)}) == 1, table
    assert out.count("<details>") == out.count("</details>") == 2


def test_markdown_has_totals_files_and_what_is_for_you(mixed: Path, run: Command) -> None:
    out = run("check", "--format", "markdown", ".").out
    assert re.match(r"## fsdp-migrate: [\d.]+ % of FSDP1 can be migrated\n", out)
    cells = {row[0].strip(): [c.strip() for c in row[1:]] for row in rows(out)}
    assert cells["`refused.py`"][0] == "4"
    assert cells["`mixed.py`"][4] == "1"
    assert "`refused.py:5`" in cells
    assert "### Left for you" in out
    assert "### To review" in out
    assert "3 sites held back" in out
    assert "1 site ignored" in out
    assert "Next: `fsdp-migrate rewrite .`" in out


def test_markdown_of_nothing(here: Path, run: Command) -> None:
    (here / "a.py").write_text("import torch\n")
    out = run("check", "--format", "markdown", ".").out
    assert out == "## fsdp-migrate: no FSDP1 found\n\n1 file read.\n"


def test_markdown_has_no_markup_of_the_sources(mixed: Path, run: Command) -> None:
    out = run("check", "--format", "markdown", ".").out
    prose = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", out)
    assert set(re.findall(r"(?<!\\)</?[a-z]+", prose)) == {
        "<details",
        "</details",
        "<summary",
        "</summary",
    }
    assert not re.search(r"@\w", prose)
    assert "\\<b\\>@<!-- -->someone\\</b\\>" in out


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain", "plain"),
        ("a_b *c* `d` [e](f) ~g~", "a\\_b \\*c\\* \\`d\\` \\[e\\](f) \\~g\\~"),
        ("<b>&amp;", "\\<b\\>\\&amp;"),
        ("a | b\nc", "a \\| b c"),
        ("\\", "\\\\"),
        ("@me and http://x.y, www.x.y", "@<!-- -->me and http:<!-- -->//x.y, w<!-- -->ww.x.y"),
        ("a\x1b[0m\u202eb", "a\\\\u001b\\[0m\\\\u202eb"),
        ("x" * 500, "x" * 400 + "..."),
    ],
)
def test_markdown_text_is_the_text(text: str, escaped: str) -> None:
    assert markdown.text(text) == escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("a.py", "`a.py`"), ("a`b", "`` a`b ``"), ("`", "`` ` ``"), ("a|b", "`a\\|b`")],
)
def test_markdown_code_is_the_text(text: str, escaped: str) -> None:
    assert markdown.code(text) == escaped


def test_markdown_fits_a_comment(here: Path, run: Command) -> None:
    for number in range(300):
        name = f"a_rather_long_name_of_a_module_that_says_little_{number}.py"
        (here / name).write_text(f"{HEAD}wrapper = {{'fsdp': FSDP}}\n")
    out = run("check", "--format", "markdown", ".").out
    assert len(out) < 65_536
    assert re.search(r"^\| \d+ more \|", out, re.MULTILINE)


# -- HTML -----------------------------------------------------------------------------------------

VOID = {"meta", "input", "col", "br"}


class Page(HTMLParser):
    """A page whose tags must be balanced: its elements, its text, its ids and links."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "title"}:
            self.text += data

    def every(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]

    def of_class(self, name: str) -> int:
        return sum(name in (attributes.get("class") or "").split() for _, attributes in self.tags)


def html(run: Command, *arguments: str) -> Page:
    source = run("check", "--format", "html", *(arguments or (".",))).out
    return Page(source)


def test_html_is_whole_and_loads_and_runs_nothing(mixed: Path, run: Command) -> None:
    found = html(run)
    assert {tag for tag, _ in found.tags} <= {
        *("html", "head", "meta", "title", "style", "body", "main", "header", "nav", "section"),
        *("footer", "article", "h1", "h2", "h3", "p", "span", "div", "small", "strong", "code"),
        *("pre", "i", "mark", "a", "ul", "li", "table", "caption", "colgroup", "col", "thead"),
        *("tbody", "tr", "th", "td", "details", "summary", "ins", "del", "fieldset", "legend"),
        *("label", "input"),
    }
    for _, attributes in found.tags:
        assert not {"src", "onclick", "onload"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    style = run("check", "--format", "html", ".").out.partition("<style>")[2]
    assert "url(" not in style.partition("</style>")[0]
    assert "@import" not in style


def test_html_links_lead_somewhere_and_ids_are_unique(mixed: Path, run: Command) -> None:
    found = html(run)
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "")[1:] for a in found.every("a")}
    named = {a["aria-labelledby"] for _, a in found.tags if "aria-labelledby" in a}
    assert links | named <= set(ids)


def test_html_can_be_found_ones_way_in(mixed: Path, run: Command) -> None:
    found = html(run)
    assert found.every("html", lang="en")
    assert len(found.every("h1")) == len(found.every("main")) == 1
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert all(b - a <= 1 for a, b in pairwise(levels))
    for tag in ("nav", "section"):
        assert all("aria-label" in a or "aria-labelledby" in a for a in found.every(tag))
    assert len(found.every("input")) == len(found.every("label"))
    assert found.every("legend")


def test_html_has_every_site_with_its_code_and_what_to_do(mixed: Path, run: Command) -> None:
    found = html(run)
    sites = json.loads(run("check", "--format", "json", ".").out)["sites"]
    assert len(found.every("article")) == found.of_class("at") == len(sites)
    assert len(found.every("mark")) == len(sites)
    for site in sites:
        assert f"{site['path']}:{site['line']}:{site['column']}" in found.text
        assert site["message"] in found.text
        help_ = site["help"]
        assert f"{help_[:1].upper()}{help_[1:]}" in found.text
    for kind in ("rewritten", "review", "left", "held", "ignored"):
        assert found.every("input", id=f"show-{kind}")


def test_html_shows_the_source_as_it_is(mixed: Path, run: Command) -> None:
    found = html(run)
    assert "<script>alert(1)</script> | `a` *b* @someone https://x.y" in found.text
    assert "odd <b>&`|.py" in found.text
    assert "Look at <this> | that." in found.text
    assert not found.every("script") + found.every("b")


def test_html_shows_what_rewrite_does(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    found = html(run)
    assert "1 lines added" not in found.text
    cells = "".join(found.text.split())
    assert "-fromtorch.distributed.fsdpimportFullyShardedDataParallelasFSDP" in cells
    run("rewrite", ".")
    for line in (here / "a.py").read_text().splitlines():
        assert line in found.text


def test_html_shows_files_that_are_added(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{HEAD}def f(net, settings):\n    return FSDP(net, **settings)\n")
    found = html(run)
    run("rewrite", "--allow-dirty", ".")
    (support,) = here.rglob("fsdp2_support.py")
    assert support.relative_to(here).as_posix() in found.text
    for line in support.read_text().splitlines():
        assert line in found.text


def test_html_without_changes_has_no_diff(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{HEAD}model = FSDP(net)  # fsdp-migrate: leave\n")
    assert not html(run).every("details")


def test_html_of_nothing(here: Path, run: Command) -> None:
    (here / "a.py").write_text("import torch\n")
    found = html(run)
    assert "No FSDP1 found" in found.text
    assert not found.every("article") + found.every("nav")


def test_html_of_odd_files(here: Path, run: Command) -> None:
    (here / "crlf.py").write_bytes(WRAPS.replace("\n", "\r\n").encode())
    (here / "bom.py").write_bytes(b"\xef\xbb\xbf" + WRAPS.encode())
    latin = f"# -*- coding: latin-1 -*-\n# caf\xe9\n{WRAPS}"
    (here / "latin.py").write_bytes(latin.encode("latin-1"))
    (here / "tabs.py").write_text(WRAPS.replace("    ", "\t"))
    (here / "long.py").write_text(f"{HEAD}x = [{'1, ' * 5000}FSDP(net)]\n")
    (here / "turned.py").write_text(f"{HEAD}x = '\u202e\x7f'; FSDP(net)\n")
    found = html(run)
    assert "café" in found.text
    assert "\\u202e\\u007f" in found.text
    assert "\u202e" not in found.text
    assert len(found.every("article")) == 6


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<a href='x'>", "&lt;a href=&#x27;x&#x27;&gt;"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x1b\ud800\u2066", "\\u0000\\u001b\\ud800\\u2066"),
        ("é 模型 😀", "é 模型 😀"),
    ],
)
def test_html_text_is_the_text(text: str, shown: str) -> None:
    assert page.text(text) == shown


# -- contrast: what the eye needs to read it (WCAG 2, AA: 4.5) ------------------------------------


def colours(dark: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("page.css", "report.css"):
        style = page.read_text("fsdp_migrate.report", name)
        blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
        for block in blocks if dark else blocks[:1]:
            found.update(re.findall(r"--([\w-]+): (#\w+)", block))
    return found


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    channels = [int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *((t, g) for t in ("text", "dim") for g in ("page", "card")),
        *(("card", tag) for tag in ("good", "open", "bad", "dim")),
        *(("text", g) for g in ("add", "add-part", "cut", "cut-part", "mark")),
        *(("dim", g) for g in ("add", "cut")),
    ],
)
def test_html_can_be_read(dark: bool, text: str, ground: str) -> None:
    found = colours(dark)
    light, shade = sorted((luminance(found[text]), luminance(found[ground])), reverse=True)
    assert (light + 0.05) / (shade + 0.05) >= 4.5


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_all_that_is_ignored_is_not_called_migrated(here: Path, run: Command, name: str) -> None:
    (here / "a.py").write_text(f"{HEAD}model = FSDP(net)  # fsdp-migrate: leave\n")
    out = run("check", "--format", name, ".").out
    assert "ll of FSDP1 is ignored" in out
    assert "100 %" not in out


def test_a_narrow_terminal_gets_messages_on_lines_of_their_own() -> None:
    rows = [
        ("FSDP101", "left", "a.py:1:1", "FSDP(): why it is left", "what to do"),
        ("FSDP501", "rewrote", "a_folder/requirements.txt:1", "torch -> torch>=2.7", ""),
    ]
    table = text._table(rows, 0)
    assert table[0] == "FSDP101  left     a.py:1:1                     FSDP(): why it is left"
    assert table[1].strip() == "what to do"
    longest = max(map(len, table))
    assert text._table(rows, longest) == table
    assert text._table(rows, longest - 1) == [
        "FSDP101  left     a.py:1:1",
        "         FSDP(): why it is left",
        "           what to do",
        "FSDP501  rewrote  a_folder/requirements.txt:1",
        "         torch -> torch>=2.7",
    ]
    assert text._table([], 80) == []
