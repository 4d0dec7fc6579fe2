"""What others wrote is shown and not obeyed: by a terminal, a log, a code host or a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fsdp_migrate import shown
from fsdp_migrate.report import markdown
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.report import RENDERERS
from fsdp_migrate.verify.report.model import Report, Verdict
from tests.helpers.commandline import ROOT, Command
from tests.helpers.terminal import COLOUR, at_terminal
from tests.verify.test_reporting import evidence, full

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FlatParameter\n"
# Everything that a line may not hold once it is shown.
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u2028"
# File names: of a terminal's sequences, of lines, of bytes that are no text, of workflow commands.
NAMES = (
    f"a{EVIL}.py",
    "b\nb.py:1:1: FSDP101 forged\n::error file=x,line=1::forged.py",
    "c\r\x85d.py",
    os.fsdecode(b"e\xff\xfe.py"),
    "::error file=x,line=1::forged.py",
    "f##[error]forged##vso[task.x]y.py",
    "g,line=9::h.py",
    "`i`|<img src=x onerror=y>'\"&.py",
    "j\\|[k](http:l) @m.py",
    '"><script>alert(1)<!--.py',
)
SOURCE = (
    f"{HEAD}m = FSDP(net)\n"
    f"FlatParameter('{EVIL}', '</pre><script>x</script>', '``` | @me ##[error]x')\n"
    f"FSDP(net)  # fsdp-migrate: leave <b>{EVIL}</b> | `x` ::error::y\n"
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of files with such names and such code, one of which does not parse."""
    root = tmp_path / "project"
    root.mkdir()
    for name in NAMES:
        (root / name.replace("/", "_")).write_text(SOURCE, encoding="utf-8")
    (root / f"broken{EVIL}\n.py").write_text(f"{HEAD}FSDP(\n", encoding="utf-8")
    (root / f"requirements{EVIL}\n.txt").write_text("torch>=2.0\n")
    monkeypatch.chdir(root)
    return root


def harmless(text: str) -> bool:
    return FORBIDDEN.search(text) is None


# -- the characters -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain é 模型 😀 \\n", "plain é 模型 😀 \\n"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[0m\x07\x7f\x9b", "\\x1b[0m\\x07\\x7f\\x9b"),
        ("\u202e\u2066\u2028\udcff", "\\u202e\\u2066\\u2028\\udcff"),
        ("# x ## y [", "# x ## y ["),
        ("##[error]x ##vso[y]", "#\\x23[error]x #\\x23vso[y]"),
    ],
)
def test_a_line_is_the_text(value: str, line: str) -> None:
    assert shown.line(value) == line
    assert shown.line(line) == line


def test_every_control_character_is_escaped() -> None:
    for number in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ):
        assert shown.line(chr(number)).isascii()
        assert shown.line(chr(number)).isprintable()
    for number in (*range(0xD800, 0xE000, 97), 0xDFFF):
        assert shown.text(chr(number)) == f"\\u{number:04x}"


INVISIBLE = [
    *(0xAD, 0x180E, *range(0x200B, 0x200E), *range(0x2060, 0x2065), 0xFEFF),
    *(0xE0000, 0xE0041, 0xE007F),
]


def test_what_nobody_sees_is_shown_in_names() -> None:
    for number in INVISIBLE:
        found = shown.line(f"a{chr(number)}b")
        assert found.isascii()
        assert len(found) > 3
    family = "\U0001f468\u200d\U0001f469"
    assert shown.text(family) == family  # what is joined in a text stays so
    assert shown.line("\ufe0e模型\u00e9") == "\ufe0e模型\u00e9"


@pytest.mark.parametrize("form", ["full", "concise", "github", "markdown", "html"])
def test_no_two_names_look_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (*INVISIBLE, 9):
        (tmp_path / f"a{chr(number)}b.py").write_text(f"{HEAD}FSDP(\n")
        (tmp_path / f"c{chr(number)}d.py").write_text(f"{HEAD}m = FSDP(net)\n")
    answer = run("check", "--format", form, ".")
    said = answer.out + answer.err
    for number in INVISIBLE:
        assert f"a{chr(number)}b" not in said
        assert f"c{chr(number)}d" not in said
    assert not re.search("[ac]\t[bd]", said)


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["full", "concise", "github", "markdown"])
def test_no_text_format_holds_what_is_obeyed(hostile: Path, run: Command, form: str) -> None:
    answer = run("check", "--format", form, ".")
    assert answer.code == 2
    assert harmless(answer.out)
    assert harmless(answer.err)
    lines = answer.out.splitlines() + answer.err.splitlines()
    assert not any(line.lstrip().startswith(("b.py", "::error file=x")) for line in lines)
    if form != "markdown":
        assert "##[" not in answer.out + answer.err
        assert "##vso[" not in answer.out + answer.err


@pytest.mark.parametrize(
    "command",
    [
        ("check", "--statistics", "."),
        ("check", "-q", "."),
        ("rewrite", "--dry-run", "-v", "."),
        ("rewrite", "-v", "."),
        ("rewrite", "--partial", "--dry-run", "."),
        ("explain", "nothing\x1b[2J\n::error::x"),
        ("check", "nothing\x1b[2J\n::error::x"),
        ("check", "--format", "\x1b[2J\n::error::x", "."),
        ("check", "--select", "\x1b[2J\n::error::x", "."),
        ("check", "--target-torch", "\x1b[2J\n::error::x", "."),
        ("nothing\x1b[2J\n::error::x",),
        ("verify", "nothing\x1b[2J\n::error::x"),
        ("undo", "nothing\x1b[2J\n::error::x"),
    ],
    ids=lambda command: command[0],
)
def test_nothing_that_is_said_is_obeyed(
    hostile: Path, run: Command, command: tuple[str, ...]
) -> None:
    answer = run(*command)
    if "--dry-run" not in command:
        assert harmless(answer.out)
    assert harmless(answer.err)
    assert not re.search(r"^\s*::", answer.out + answer.err, re.MULTILINE)


def test_what_is_put_back_is_listed_harmlessly(hostile: Path, run: Command) -> None:
    assert run("rewrite", ".").code == 2
    answer = run("undo")
    assert answer.code == 0
    restored = len(NAMES) + 1  # and the requirements
    assert answer.out.count("restored ") == restored
    assert len(answer.out.splitlines()) == restored
    assert harmless(answer.out)


def test_uncommitted_changes_are_listed_harmlessly(hostile: Path, run: Command) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    answer = run("rewrite", ".")
    assert "uncommitted changes in" in answer.err
    assert harmless(answer.err)
    assert len(answer.err.splitlines()) == 1


def test_a_site_is_pointed_at_behind_what_was_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(f"{HEAD}'\x1b\u202e\t'; x = FSDP('\x7f')\n")
    lines = run("check", "a.py").out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("2 | "))
    source, carets = lines[at : at + 2]
    assert source.endswith("'\\x1b\\u202e '; x = FSDP('\\x7f')")
    assert source[carets.index("^") :] == "FSDP('\\x7f')"
    assert carets.count("^") == len("FSDP('\\x7f')")


# -- patches --------------------------------------------------------------------------------------


def test_a_redirected_patch_keeps_every_byte(hostile: Path) -> None:
    """``git apply`` makes of it what ``rewrite`` writes, under names of any characters."""
    subprocess.run(["git", "init", "-q"], check=True)
    program = [sys.executable, "-m", "fsdp_migrate", "rewrite"]
    patch = subprocess.run([*program, "--dry-run", "."], capture_output=True, check=False).stdout
    assert b"\x1b]0;owned" in patch
    before = contents(hostile)
    subprocess.run([*program, "."], capture_output=True, check=False)
    after = contents(hostile)
    assert after != before
    for name, data in before.items():
        (hostile / name).write_bytes(data)
    for name in after.keys() - before.keys():
        (hostile / name).unlink()
    subprocess.run(["git", "apply", "-"], input=patch, check=True)
    assert contents(hostile) == after


def contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def test_names_are_quoted_as_git_quotes_them(hostile: Path, run: Command) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "-A"], check=True)
    patch = os.fsencode(run("rewrite", "--dry-run", ".").out)
    run("rewrite", "--allow-dirty", ".")
    listed = subprocess.run(["git", "diff"], capture_output=True, check=True).stdout
    ours, gits = (
        {line for line in text.split(b"\n") if line.startswith((b"diff --git", b"--- ", b"+++ "))}
        for text in (patch, listed)
    )
    assert gits <= ours
    assert len(gits) == 3 * (len(NAMES) + 1)  # and the requirements


@pytest.mark.parametrize("colour", [False, True])
def test_on_a_terminal_patches_are_escaped(hostile: Path, colour: bool) -> None:
    answer = at_terminal(hostile, "rewrite", "--dry-run", ".", answers="", colour=colour)
    assert harmless(COLOUR.sub("", answer.out).replace("\r", ""))  # the spinner goes back
    assert "\\x1b]0;owned\\x07" in answer.out


def test_changes_to_review_are_escaped(hostile: Path) -> None:
    answer = at_terminal(hostile, "rewrite", "--review", ".", answers="m" * len(NAMES) + "mm")
    assert harmless(answer.out)
    assert "\n::error" not in answer.out


@pytest.mark.parametrize("target", ["pr.md", "-"])
def test_the_description_of_a_pull_request_is_harmless(
    hostile: Path, run: Command, target: str
) -> None:
    answer = run("rewrite", ".", "--dry-run", "--summary", target)
    written = (hostile / target).read_text() if target != "-" else answer.out
    assert harmless(written)
    assert "<script" not in re.sub(r"`+.*?`+|\\<", "", written)
    assert "@me" not in re.sub(r"`+.*?`+", "", written)


# -- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_data_holds_true_values_and_no_raw_character(
    hostile: Path, run: Command, form: str, tmp_path: Path
) -> None:
    out = run("check", "--format", form, ".").out
    assert harmless(out)
    document = json.loads(out)
    if form == "json":
        assert {site["path"] for site in document["sites"]} == set(NAMES)
        reason = next(site["message"] for site in document["sites"] if site["ignored"])
        assert EVIL.rstrip("\u2028") in reason
    file = tmp_path / "report"
    run("check", "--format", form, "-o", file, ".")
    assert file.read_text() == out


# -- code hosts -----------------------------------------------------------------------------------


def test_annotations_cannot_be_forged(hostile: Path, run: Command) -> None:
    """Each line is one command of ours, whose properties end where we end them."""
    out = run("check", "--format", "github", ".").out
    command = re.compile(
        r"::(notice|warning|error) (file=([^:,]+),line=\d+"
        r"((,col=\d+)?(,endLine=\d+)?(,endColumn=\d+)?,title=FSDP\d{3}( \(review\))?)?"
        r"|title=fsdp-migrate)::(.*)"
    )
    for line in out.splitlines():
        found = command.fullmatch(line)
        assert found, line
        assert "##[" not in line
    assert "%3A%3Aerror file=x%2Cline=1" in out


@pytest.mark.parametrize("value", NAMES)
def test_markdown_code_ends_where_we_end_it(value: str) -> None:
    """Wherever a reader of tables splits cells: no backtick opens, no bar is bare."""
    cell = markdown.code(f"{value}:1")
    assert harmless(cell)
    assert "\n" not in cell
    bars = re.findall(r"(\\*)\|", cell)
    assert all(len(slashes) % 2 for slashes in bars), cell
    fence = re.match("`*", cell)
    assert fence is not None
    if fence[0]:
        assert cell.endswith(fence[0])
        inner = cell[len(fence[0]) : -len(fence[0])]
        assert fence[0] not in re.findall("`+", inner)
    else:
        assert not re.search(r"(?<!\\)(\\\\)*[`<>\[\]*_]", cell.replace("<!-- -->", ""))


def test_markdown_has_no_markup_but_ours(hostile: Path, run: Command) -> None:
    out = run("check", "--format", "markdown", ".").out
    prose = re.sub(r"(`+) ?.*? ?\1(?!`)", "", out)
    tags = set(re.findall(r"(?<!\\)<[a-z/!][^>]*>", prose))
    assert tags <= {"<details>", "</details>", "<summary>", "</summary>", "<!-- -->"}
    assert not re.search(r"@\w", prose)


# -- pages ----------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes; values where they act."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[object, ...]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        acting = [(name, value) for name, value in attrs if name != "aria-label"]
        self.found.append((tag, *acting, *(n for n, _ in attrs if n == "aria-label")))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.found.append(("declaration", decl))


RULE = '''"""{text}

## Why
{text}
"""
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP950", name="ours", handles=("FlatParameter",))

def decide(site, study):
    return study.left(site, "FSDP950", {text!r}, {text!r})
'''
PIECES = (
    "<script>alert(1)</script>",
    "\"' onmouseover='x' x=\"",
    "--><!-- <style>*{}</style>",
    "</pre></title></main><iframe src=x>",
    "]]><svg/onload=x>&lt;b&gt;&#60;b&#62;",
    EVIL,
)


@pytest.mark.parametrize("piece", PIECES)
def test_a_page_has_the_elements_of_its_harmless_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    """Names, code, comments and what rules say change the text of a page, and nothing else."""
    pages = []
    # Of the same kinds of characters, so that changed lines are divided alike.
    for name, text in (("hostile", piece), ("harmless", re.sub(r"[^\w\s]", "-", piece))):
        root = tmp_path / name
        (root / "rules").mkdir(parents=True)
        (root / "rules" / "FSDP950_ours.py").write_text(RULE.format(text=text.replace("\\", "")))
        (root / "pyproject.toml").write_text('[tool.fsdp-migrate]\nrule-paths = ["rules"]\n')
        code = f"{HEAD}m = FSDP(net)  # {text.splitlines()[0]}\nFlatParameter({text!r})\n"
        code += f"FSDP(net)  # fsdp-migrate: leave {text.splitlines()[0]}\n"
        (root / f"{text.replace('/', '_')}.py").write_text(code)
        monkeypatch.chdir(root)
        program = [sys.executable, "-m", "fsdp_migrate", "check", "--trust-rules", "."]
        answer = subprocess.run(
            [*program, "--format", "html"], capture_output=True, check=False, text=True
        )
        pages.append(answer.stdout)
    assert harmless(pages[0])
    assert "FSDP950" in pages[0]
    first, second = (Elements(page).found for page in pages)
    assert first == second
    assert len(first) > 100


def test_a_page_may_neither_run_nor_load_anything(hostile: Path, run: Command) -> None:
    page = run("check", "--format", "html", ".").out
    assert harmless(page)
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
    assert page.index(policy) < page.index("<title>")
    # What the page itself has is allowed by it: styles that stand in it, and nothing else.
    kinds = {each[0] for each in Elements(page).found}
    assert not kinds & {"script", "link", "img", "iframe", "form", "object", "base", "comment"}


def report(text: str) -> Report:
    """A report of verify in which every text is this one."""
    found = full(evidence(clip=None), Verdict.DIFFERENT)
    gates = tuple(replace(gate, says=text, details=(text,), hint=text) for gate in found.gates)
    failed = Gate(key="x", title=text, status=Status.FAIL, says=text, details=(text,), hint=text)
    return replace(
        found,
        program=text,
        before=text,
        after=text,
        says=text,
        gates=(*gates, failed),
        notes=(text,),
        limits=(text,),
    )


@pytest.mark.parametrize("piece", [*PIECES, "a\nVERDICT  PASS  same training", "`|x|` @me ://"])
def test_reports_of_verify_show_and_do_not_obey(piece: str) -> None:
    hostile_, twin = report(f"a {piece} b"), report("a x b")
    for name, render in RENDERERS.items():
        assert harmless(render(hostile_)), name
    text = RENDERERS["text"](hostile_)
    assert len(re.findall(r"^VERDICT  ", text, re.MULTILINE)) == 1
    assert Elements(RENDERERS["html"](hostile_)).found == Elements(RENDERERS["html"](twin)).found
    assert json.loads(RENDERERS["json"](hostile_))["program"] == f"a {piece} b"
    document = ET.fromstring(RENDERERS["junit"](hostile_))
    assert [e.tag for e in document.iter()] == [
        e.tag for e in ET.fromstring(RENDERERS["junit"](twin)).iter()
    ]
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", RENDERERS["markdown"](hostile_))
    prose = re.sub(r"(`+) ?.*? ?\1(?!`)", "", outside)
    tags = set(re.findall(r"(?<!\\)<[a-z/][^>]*>", prose))
    assert tags <= {"<details>", "<details open>", "</details>", "<summary>", "</summary>"}


@pytest.mark.parametrize("number", [0, 8, 11, 27, 0x85, 0xD800, 0xFFFE, 0xFFFF])
def test_xml_holds_no_character_that_xml_forbids(number: int) -> None:
    ET.fromstring(RENDERERS["junit"](report(f"a{chr(number)}b")).encode())


def test_no_file_of_the_repository_is_an_option_of_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    for name in ("--exit-zero", "--exit-zero.py", "a.py"):
        (tmp_path / name).write_text(f"{HEAD}m = FSDP(net)\n")
    action = (ROOT / "action.yml").read_text()
    lines = action[action.index("ARGS: ") :].split("run: ", 1)[1].removeprefix("|\n")
    command = tmp_path / "runner" / "fsdp-migrate" / "bin" / "fsdp-migrate"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    runner = {"RUNNER_TEMP": str(tmp_path / "runner"), "PATHS": "* a.py", "ARGS": "-q"}
    said = subprocess.run(
        ["bash", "-c", lines],
        cwd=tmp_path,
        env={**os.environ, **runner},
        capture_output=True,
        check=True,
        text=True,
    )
    expected = ["check", "--format", "github", "-q", "--", "*", "a.py"]
    assert said.stdout.splitlines() == expected
    monkeypatch.chdir(tmp_path)
    assert run("check", "--format", "github", "--", "--exit-zero.py", "a.py").code == 1


def test_carriage_returns_alone_are_no_defect_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    data = f"{HEAD}m = FSDP(net)\nFlatParameter(m)\n".replace("\n", "\r").encode()
    (tmp_path / "a.py").write_bytes(data)
    answer = run("rewrite", "-v", ".")
    assert answer.code == 1
    assert "its lines end in a carriage return alone" in answer.out
    assert "defect" not in answer.out + answer.err
    assert (tmp_path / "a.py").read_bytes() == data
