"""Commands as users meet them: what they do to files, what they say and where, how they exit."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate import __main__ as entry
from fsdp_migrate.cli import console, verify
from fsdp_migrate.cli import process as ending
from fsdp_migrate.cli.options import Verify
from fsdp_migrate.migration import engine
from fsdp_migrate.planning import rule
from fsdp_migrate.rewriting import journal, write
from tests.helpers.commandline import DEMO, Command
from tests.helpers.migrating import files

WRAPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model)
"""
SHARDS = """\
from torch.distributed.fsdp import fully_shard


def build(model):
    return fully_shard(model)
"""
LEFT = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapped(FSDP):
    def state_dict(self):
        return super().state_dict()
"""


@pytest.fixture
def demo(here: Path) -> Path:
    """The bundled example project, committed to git."""
    shutil.copytree(DEMO / "before", here, dirs_exist_ok=True)
    git(here, "init", "-q")
    git(here, "add", "-A")
    git(here, "commit", "-q", "-m", "x")
    return here


def git(root: Path, *arguments: str, data: bytes | None = None) -> str:
    settings = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "core.autocrlf=false"]
    command = ["git", "-C", str(root), *settings, *arguments]
    answer = subprocess.run(command, check=True, capture_output=True, input=data)
    return answer.stdout.decode()


def contents(root: Path) -> dict[str, bytes]:
    """Every file but git's and the journal's."""
    return {
        p.relative_to(root).as_posix(): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not {".git", journal.INSIDE} & set(p.relative_to(root).parts)
    }


# -- rewrite, check, undo over a whole project ----------------------------------------------------


def test_rewrite_makes_the_expected_project_and_undo_the_original(demo: Path, run: Command) -> None:
    before = contents(demo)
    answer = run("rewrite", ".")
    assert answer.code == 0
    assert files(demo) == files(DEMO / "after")
    assert "5 files changed" in answer.out
    assert "100 % migrated" in answer.out
    assert not answer.err
    undone = run("undo")
    assert undone.code == 0
    assert "restored finetune/loop.py" in undone.out
    assert contents(demo) == before
    assert not git(demo, "status", "--porcelain")
    assert run("undo").code == 2


GATHERS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def f(net):
    model = FSDP(net)
    with FSDP.summon_full_params(model):
        return net.weight
"""


def test_a_support_file_is_added_and_taken_away(here: Path, run: Command) -> None:
    (here / "a.py").write_text(GATHERS)
    shown = run("rewrite", "--dry-run", ".")
    assert "new file mode 100644\n--- /dev/null\n+++ b/fsdp2_support.py" in shown.out
    assert "1 file changed, fsdp2_support.py added" in run("rewrite", ".").out
    assert "removed fsdp2_support.py" in run("undo").out
    assert contents(here) == {"a.py": GATHERS.encode(), "pyproject.toml": b""}


def test_a_second_rewrite_changes_nothing(demo: Path, run: Command) -> None:
    run("rewrite", ".")
    first = contents(demo)
    answer = run("rewrite", ".", "--allow-dirty")
    assert answer.code == 0
    assert "no FSDP1 found" in answer.out
    assert contents(demo) == first
    assert run("undo").code == 0, "the run that did nothing must not hide the one that did"
    assert not git(demo, "status", "--porcelain")


def test_a_second_rewrite_of_what_is_left_changes_nothing(here: Path, run: Command) -> None:
    (here / "a.py").write_text(LEFT)
    answer = run("rewrite", ".")
    assert answer.code == 1
    assert "1 left for you" in answer.out
    first = contents(here)
    assert b"# TODO(fsdp-migrate FSDP" in first["a.py"]
    assert run("rewrite", ".").code == 1
    assert contents(here) == first


def test_check_and_dry_run_touch_nothing(demo: Path, run: Command) -> None:
    before = contents(demo)
    assert run("check", ".").code == 1
    assert run("rewrite", "--dry-run", ".").code == 1
    assert contents(demo) == before
    assert not journal.any_run(demo.resolve(), journal.state())


def test_check_after_rewrite_is_clean(demo: Path, run: Command) -> None:
    run("rewrite", ".")
    answer = run("check", ".")
    assert answer.code == 0
    assert "no FSDP1 found" in answer.out


# -- the dry run is a patch -----------------------------------------------------------------------


def patched(root: Path, run: Command, *, where: str = ".") -> dict[str, bytes]:
    """What ``rewrite --dry-run | git apply`` makes, put back afterwards."""
    before = contents(root)
    answer = run("rewrite", "--dry-run", where)
    git(root, "apply", "-", data=os.fsencode(answer.out))
    after = contents(root)
    for name in after.keys() - before.keys():
        (root / name).unlink()
    for name, data in before.items():
        (root / name).write_bytes(data)
    return after


def test_the_patch_makes_what_rewrite_makes(demo: Path, run: Command) -> None:
    applied = patched(demo, run)
    run("rewrite", ".")
    assert contents(demo) == applied


@pytest.mark.parametrize(
    "data",
    [
        WRAPS.rstrip("\n").encode(),
        WRAPS.replace("\n", "\r\n").encode(),
        WRAPS.replace("\n", "\r\n").rstrip("\r\n").encode(),
        b"\xef\xbb\xbf" + WRAPS.encode(),
        b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + WRAPS.encode() + b"# d\xe9j\xe0\n",
        b"# page\x0c\n" + WRAPS.encode(),
        WRAPS.replace("    ", "\t").encode(),
        "# größe, 尺寸\n".encode() + WRAPS.encode(),
        WRAPS.encode() + b"\n\n# end   \n\n\n",
    ],
    ids=[
        "bare end",
        "crlf",
        "crlf, bare end",
        "bom",
        "latin-1",
        "form feed",
        "tabs",
        "utf-8",
        "end",
    ],
)
def test_bytes_survive_rewrite_patch_and_undo(here: Path, run: Command, data: bytes) -> None:
    git(here, "init", "-q")
    path = here / "a.py"
    path.write_bytes(data)
    applied = patched(here, run)["a.py"]
    assert path.read_bytes() == data
    assert run("rewrite", "a.py").code == 0
    wanted = data
    for old, new in zip(WRAPS.splitlines(), SHARDS.splitlines(), strict=True):
        wanted = wanted.replace(old.strip().encode(), new.strip().encode())
    assert path.read_bytes() == applied == wanted
    assert run("undo").code == 0
    assert path.read_bytes() == data


def test_a_patch_applies_where_it_was_made(tmp_path: Path, here: Path, run: Command) -> None:
    """From a directory inside the repository, and from outside any repository."""
    project = here / "project"
    (project / "pkg").mkdir(parents=True)
    (project / "pkg" / "a b.py").write_text(WRAPS)
    (project / "pkg" / "größe.py").write_text(WRAPS)
    outside = run("rewrite", "--dry-run", "project")
    assert "--- a/project/pkg/a b.py" in outside.out
    git(project, "init", "-q")
    os.chdir(project / "pkg")
    assert set(patched(project, run)) == {"pkg/a b.py", "pkg/größe.py"}
    inside = run("rewrite", "--dry-run", ".")
    assert "--- a/pkg/a b.py" in inside.out


def test_a_patch_names_what_a_link_leads_to(here: Path, run: Command) -> None:
    git(here, "init", "-q")
    (here / "real.py").write_text(WRAPS)
    (here / "link.py").symlink_to("real.py")
    assert patched(here, run, where="link.py")["real.py"] == SHARDS.encode()
    assert run("rewrite", "link.py").code == 0
    assert (here / "link.py").is_symlink()
    assert (here / "real.py").read_text() == SHARDS


def test_the_dry_run_says_the_rest_on_stderr(demo: Path, run: Command) -> None:
    answer = run("rewrite", "--dry-run", ".")
    assert answer.out.startswith("diff --git a/finetune/checkpoint.py b/finetune/checkpoint.py\n")
    assert "25 sites" not in answer.out
    assert "25 sites" in answer.err
    quiet = run("rewrite", "--dry-run", "--quiet", ".")
    assert quiet.out == answer.out
    assert not quiet.err


def test_the_dry_run_of_nothing_is_empty(here: Path, run: Command) -> None:
    (here / "a.py").write_text("x = 1\n")
    answer = run("rewrite", "--dry-run", ".")
    assert (answer.code, answer.out) == (0, "")


# -- uncommitted work -----------------------------------------------------------------------------


def test_files_with_uncommitted_changes_are_not_rewritten(demo: Path, run: Command) -> None:
    loop = demo / "finetune" / "loop.py"
    loop.write_text(loop.read_text() + "# mine\n")
    before = contents(demo)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "uncommitted changes in finetune/loop.py" in answer.err
    assert "--allow-dirty" in answer.err
    assert contents(demo) == before
    assert run("rewrite", "--allow-dirty", ".").code == 0
    assert "# mine" in loop.read_text()


def test_uncommitted_changes_elsewhere_do_not_matter(demo: Path, run: Command) -> None:
    (demo / "train.py").write_text((demo / "train.py").read_text() + "# mine\n")
    (demo / "notes.md").write_text("mine")
    assert run("rewrite", ".").code == 0


def test_a_staged_change_is_uncommitted(demo: Path, run: Command) -> None:
    loop = demo / "finetune" / "loop.py"
    loop.write_text(loop.read_text() + "# mine\n")
    git(demo, "add", "-A")
    assert run("rewrite", "finetune").code == 2


# -- choosing rules -------------------------------------------------------------------------------


def test_what_is_not_selected_is_left(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    answer = run("check", "--select", "FSDP3", "a.py")
    assert answer.out == "1 site: 0 to rewrite, 0 to review, 0 left for you, 1 ignored\n"
    assert answer.code == 0
    assert run("rewrite", "--ignore", "FSDP101,FSDP2", "a.py").code == 0
    assert (here / "a.py").read_text() == WRAPS


@pytest.mark.parametrize("option", ["--select", "--ignore", "--leave"])
@pytest.mark.parametrize("code", ["FSDP999", "101", "FSDP1011"])
def test_an_unknown_rule_code_is_an_error(here: Path, run: Command, option: str, code: str) -> None:
    (here / "a.py").write_text(WRAPS)
    answer = run("rewrite", option, code, "a.py")
    assert answer.code == 2
    assert repr(code) in answer.err
    assert (here / "a.py").read_text() == WRAPS


def test_a_rule_of_the_projects_own_is_a_rule(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text('[tool.fsdp-migrate]\nrule-paths = ["rules"]\n')
    (here / "rules").mkdir()
    (here / "rules" / "FSDP950_ours.py").write_text(
        '"""What ours does.\n\nMore.\n"""\n'
        "from fsdp_migrate.planning.rule import Rule\n"
        'RULE = Rule(code="FSDP950", name="ours", handles=("ours()",))\n'
        "def decide(site, study):\n    raise AssertionError\n"
    )
    (here / "a.py").write_text(WRAPS)
    assert "FSDP950  ours" in run("explain").out
    assert "What ours does" in run("explain", "FSDP950").out
    assert run("check", "--trust-rules", "--ignore", "FSDP950", "a.py").code == 1
    (here / "rules" / "FSDP950_ours.py").write_text("(")
    broken = run("check", "--trust-rules", "a.py")
    assert broken.code == 2
    assert "rules/FSDP950_ours.py: SyntaxError" in broken.err


# -- report formats -------------------------------------------------------------------------------


def test_json_says_everything(demo: Path, run: Command) -> None:
    answer = run("check", "--format", "json", ".")
    assert not answer.err
    document = json.loads(answer.out)
    assert document["summary"]["sites"] == len(document["sites"]) == 25
    assert document["summary"]["rewritten"] + document["summary"]["review"] == 25
    first = document["sites"][0]
    assert {"path", "line", "column", "code", "outcome", "construct", "message"} <= set(first)
    line = (demo / first["path"]).read_text().splitlines()[first["line"] - 1]
    assert line[first["column"] - 1 :].startswith(first["construct"])


def test_concise_is_one_clickable_line_a_site(demo: Path, run: Command) -> None:
    answer = run("check", "--format", "concise", ".")
    sites = [line for line in answer.out.splitlines() if ": FSDP" in line]
    assert len(sites) == 25
    assert all(re.match(r"finetune/\w+\.py:\d+:\d+: FSDP\d{3} ", line) for line in sites)
    assert answer.out.splitlines()[-1] == "Next: fsdp-migrate rewrite ."


def test_full_points_at_the_source(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    answer = run("check", "a.py")
    assert " --> a.py:5:12\n" in answer.out
    assert "5 |     return FSDP(model)\n  |            ^^^^^^^^^^^\n" in answer.out


def test_a_very_long_line_is_shown_in_part(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{WRAPS}TABLE = [{'1, ' * 300_000}FSDP(m)]\n")
    answer = run("check", "a.py")
    assert answer.code == 1
    source, carets = answer.out.splitlines()[-5:-3]
    assert carets[source.index("FSDP(m)") :].startswith("^^^^^^^")
    assert max(map(len, answer.out.splitlines())) < 400


def test_github_annotations(here: Path, run: Command) -> None:
    (here / "a,b.py").write_text(LEFT)
    (here / "bad.py").write_text(f"{WRAPS}(\n")
    answer = run("check", "--format", "github", ".")
    lines = answer.out.splitlines()
    assert any(
        line.startswith("::warning file=a%2Cb.py,line=4,col=1,endLine=4,endColumn=")
        for line in lines
    )
    assert any(line.startswith("::error file=bad.py,line=6::does not parse") for line in lines)
    assert all(line.startswith("::") for line in lines)


def test_a_report_goes_to_a_file(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    answer = run("check", "--format", "json", "--output", "report.json", "a.py")
    assert answer.code == 1
    assert not answer.out
    assert json.loads((here / "report.json").read_text())["summary"]["sites"] == 1
    failed = run("check", "--output", "nowhere/report.txt", "a.py")
    assert failed.code == 2
    assert "nowhere/report.txt: No such file or directory" in failed.err


def test_statistics_count_sites_per_rule(demo: Path, run: Command) -> None:
    rows = [line.split() for line in run("check", "--statistics", ".").out.splitlines()]
    assert sum(int(number) for number, _, _ in rows) == 25
    assert {mark for _, _, mark in rows} == {"[*]"}


def test_what_makes_check_succeed(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    (here / "b.py").write_text(LEFT)
    assert run("check", ".").code == 1
    assert run("check", "--exit-zero", ".").code == 0
    assert run("check", "--min-coverage", "50", ".").code == 0
    assert run("check", "--min-coverage", "51", ".").code == 1
    quiet = run("check", "--quiet", ".")
    assert (quiet.code, quiet.out, quiet.err) == (1, "", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--format", "yaml", "."], "'yaml'"),
        (["check", "--min-coverage", "120", "."], "120"),
        (["check", "--min-coverage", "all", "."], "'all'"),
        (["check", "--colour", "."], "--colour"),
        (["rewrite"], "PATH"),
        (["rewrite", "--target-torch", "new", "."], "'new'"),
        (["rewrite", "--target-torch", "2.1", "."], "2.1"),
        (["rewrite", "--select"], "--select"),
        (["rewite", "."], "did you mean rewrite?"),
        (["--colour"], "--colour"),
        (["explain", "FSDP101", "FSDP102"], "FSDP102"),
        (["undo", "nowhere"], "nowhere: does not exist"),
        (["verify"], "SCRIPT"),
        (["verify", "nowhere.py"], "nowhere.py"),
        (["verify", "a.py", "--nproc", "two"], "'two'"),
        (["verify", "a.py", "--steps", "two"], "'two'"),
        (["verify", "a.py", "--device", "gpu"], "'gpu'"),
        (["verify", "a.py", "b.py"], "b.py"),
        (["verify", "a.py", "--before", "--", "b"], "--before"),
        (["rewrite", "--select", "--dry-run", "."], "--select"),
        (["rewrite", "a.py", "--dry-run=no"], "--dry-run"),
    ],
)
def test_wrong_usage_is_said_in_one_line(
    here: Path, run: Command, arguments: list[str], said: str
) -> None:
    (here / "a.py").write_text(WRAPS)
    answer = run(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not answer.out
    assert (here / "a.py").read_text() == WRAPS


def test_options_may_stand_anywhere(here: Path, run: Command) -> None:
    for name in ("a.py", "b.py", "-c.py"):
        (here / name).write_text(WRAPS)
    answer = run("check", "a.py", "--format", "json", "b.py", "--", "-c.py")
    assert {site["path"] for site in json.loads(answer.out)["sites"]} == {"a.py", "b.py", "-c.py"}


def test_options_may_be_repeated_joined_and_written_together(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    every = run("check", "a.py", "--statistics")
    assert "[*]" in every.out
    split = run("check", "--select", "FSDP2", "--select", "FSDP3,FSDP1", "a.py", "--statistics")
    assert split == every
    assert "1  ignored" in run("check", "--statistics", "--ignore=FSDP2, FSDP1", "a.py").out
    for index, short in enumerate((["-qor0"], ["-q", "-or1"], ["-q", "-o=r2"])):
        assert run("check", *short, "a.py").code == 1
        assert (here / f"r{index}").is_file()


def test_verify_is_asked_what_the_command_line_says(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Verify] = []
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")

    def command(said: Verify) -> int:
        asked.append(said)
        return 1

    monkeypatch.setattr(verify, "verify", command)
    assert run("verify", "train.py").code == 1
    assert asked.pop() == Verify(script="train.py")
    options = "--before v1 --nproc 1,2 --steps 3 --timeout 2.5 --seed -1 --device simulate"
    more = "--no-twin --cache --env A=1 --env B=2 --share data -o a.xml -o b.md -q"
    run("verify", *options.split(), "train.py", *more.split(), "--", "--steps", "9", "--", "-h")
    assert asked.pop() == Verify(
        script="train.py",
        args=("--steps", "9", "--", "-h"),
        before="v1",
        nproc=(1, 2),
        steps=3,
        timeout=2.5,
        seed=-1,
        device="simulate",
        twin=False,
        cache=Path("/cache/fsdp-migrate/verify"),
        env={"A": "1", "B": "2"},
        share=("data",),
        outputs=(Path("a.xml"), Path("b.md")),
        quiet=True,
    )
    run("verify", "train.py", "--resume-check", "--resume out/last.pt", "--launcher", "srun -n 8")
    assert (asked[0].resume, asked[0].launcher) == (
        ("--resume", "out/last.pt"),
        "srun -n 8",
    )


@pytest.mark.parametrize("command", ["rewrite", "check", "explain", "undo", "verify", "migrate"])
def test_help_is_a_result_and_fits_the_screen(
    run: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = run(command, "-h")
    assert (answer.code, answer.err) == (0, "")
    assert answer == run(command, "--help")
    assert max(map(len, answer.out.splitlines())) < 80
    assert f"  {command} " in run("--help").out


def test_without_a_command_help_is_no_result(run: Command) -> None:
    answer = run()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == run("--help").out


def test_answers_without_a_parser_are_those_with_one(here: Path, run: Command) -> None:
    for arguments in (["--version"], ["explain"], ["explain", "FSDP101"], ["explain", "FSDP999"]):
        answer = run(*arguments)
        process_ = process(*arguments, cwd=here)
        assert (process_.returncode, process_.stdout.decode(), process_.stderr.decode()) == (
            answer.code,
            answer.out,
            answer.err,
        )


# -- the screen -----------------------------------------------------------------------------------


def coloured(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "30")
    return terminal


LINES = [
    "FSDP201  left     src/a/very/long/path/to/a/file.py:10:4  x[bold]: :smile: [/] " + "y " * 50
]


def test_a_terminal_gets_colour_but_no_wrapping_and_no_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    terminal = coloured(monkeypatch)
    console.sites(LINES)
    console.diff(b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-[red]a[/red]\n+b\n")
    said = terminal.getvalue()
    assert "\x1b[" in said
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    assert plain[0] == LINES[0]
    assert plain[1:] == ["--- a/x.py", "+++ b/x.py", "@@ -1 +1 @@", "-[red]a[/red]", "+b"]


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = coloured(monkeypatch)
    console.sites(LINES)
    assert terminal.getvalue() == f"{LINES[0]}\n"


def test_a_pipe_gets_a_plain_patch_whatever_ci_says(
    demo: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("rewrite", "--dry-run", ".").out


# -- bad input ------------------------------------------------------------------------------------

BAD = {
    "syntax": (f"{WRAPS}def f(:\n".encode(), "bad.py:6: does not parse: invalid syntax"),
    "bytes": (f"{WRAPS}# ".encode() + b"\xff\n", "bad.py:6: cannot be decoded as utf-8: byte 0xff"),
    "cookie": (
        f"# coding: klingon\n{WRAPS}".encode(),
        "bad.py: cannot be decoded: unknown encoding: klingon",
    ),
    "nul": (f"{WRAPS}x = '\0'\n".encode(), "bad.py: does not parse"),
    "python 2": (f"{WRAPS}print 1\n".encode(), "bad.py:6: does not parse"),
    "nesting": (f"{WRAPS}x = {'(' * 500}{')' * 500}\n".encode(), "bad.py"),
}


@pytest.mark.parametrize(("data", "said"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_read_never_costs_another(
    here: Path, run: Command, data: bytes, said: str
) -> None:
    (here / "bad.py").write_bytes(data)
    (here / "good.py").write_text(WRAPS)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert f"error: {said}" in answer.err
    assert (here / "good.py").read_text() == SHARDS
    assert (here / "bad.py").read_bytes() == data


def test_newer_f_strings_are_read_by_a_newer_python(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f'{WRAPS}print(f"{{names["a"]}}")\n')
    answer = run("rewrite", ".")
    if sys.version_info >= (3, 12):
        assert answer.code == 0
    else:
        assert answer.code == 2
        assert "a.py:6: does not parse: f-string" in answer.err
        assert "(Python 3.12 reads more f-strings: run this with it)" in answer.err


def test_a_broken_file_without_fsdp_is_none_of_our_business(here: Path, run: Command) -> None:
    (here / "bad.py").write_text("def f(:\n")
    (here / "good.py").write_text(WRAPS)
    assert run("rewrite", ".").code == 0


@pytest.mark.parametrize("depth", [1000])
def test_deep_nesting_is_no_reason_to_fail(here: Path, run: Command, depth: int) -> None:
    branches = "".join(f"    elif x == {n}:\n        y = {n}\n" for n in range(depth))
    source = f"{WRAPS}\n\ndef f(x):\n    if x is None:\n        y = 0\n{branches}    return y\n"
    (here / "a.py").write_text(source)
    answer = run("rewrite", ".")
    assert (answer.code, answer.err) == (0, "")
    assert (here / "a.py").read_text() == source.replace(WRAPS, SHARDS)


@pytest.mark.parametrize(
    ("name", "said"), [("nowhere", "does not exist"), ("empty", "no Python files here")]
)
def test_a_path_that_is_no_use(here: Path, run: Command, name: str, said: str) -> None:
    (here / "empty").mkdir()
    (here / "a.py").write_text(WRAPS)
    for command in ("rewrite", "check"):
        answer = run(command, "a.py", name) if name == "nowhere" else run(command, name)
        assert answer.code == 2
        assert f"error: {name}: {said}" in answer.err
    assert (here / "a.py").read_text() == WRAPS


def test_a_read_only_file_is_named_and_the_others_are_written(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    (here / "b.py").write_text(WRAPS)
    (here / "b.py").chmod(0o444)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert answer.err == "error: b.py: is read-only\n"
    assert (here / "a.py").read_text() == SHARDS
    assert (here / "b.py").read_text() == WRAPS


def test_a_file_that_changes_during_the_run_is_not_overwritten(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a.py").write_text(WRAPS)
    rewrite = engine.rewrite

    def slow(*args: object, **options: object) -> engine.Result:
        (here / "a.py").write_text("# edited\n")
        return rewrite(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "rewrite", slow)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "a.py: was changed" in answer.err
    assert (here / "a.py").read_text() == "# edited\n"


def test_undo_refuses_when_a_file_was_edited_since(here: Path, run: Command) -> None:
    (here / "a.py").write_text(WRAPS)
    run("rewrite", ".")
    (here / "a.py").write_text(f"{SHARDS}# mine\n")
    answer = run("undo")
    assert answer.code == 2
    assert "a.py: changed since the rewrite" in answer.err
    assert (here / "a.py").read_text() == f"{SHARDS}# mine\n"


def test_undo_from_elsewhere_is_told_how(here: Path, run: Command) -> None:
    (here / "inner").mkdir()
    (here / "inner" / "pyproject.toml").write_text("")
    (here / "inner" / "a.py").write_text(WRAPS)
    answer = run("rewrite", "inner")
    assert "Undo: fsdp-migrate undo inner\n" in answer.out
    assert run("undo", "inner").out == "restored inner/a.py\n"


# -- defects of ours ------------------------------------------------------------------------------


RULES = rule.load().rules


def broken(*args: object, **options: object) -> None:
    raise KeyError("lost")


def test_a_crash_of_the_engine_is_one_line_and_writes_nothing(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a.py").write_text(WRAPS)
    monkeypatch.setattr(engine, "rewrite", broken)
    for command in ("rewrite", "check"):
        answer = run(command, "a.py")
        assert answer.code == 2
        assert "KeyError: 'lost' (this is a defect of fsdp-migrate" in answer.err
        assert "Traceback" not in answer.err
    assert (here / "a.py").read_text() == WRAPS


def test_a_rule_that_fails_costs_no_other_model(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a.py").write_text(WRAPS)
    (here / "b").mkdir()
    (here / "b" / "b.py").write_text(f"{WRAPS}\n\nbuild(net).clip_grad_norm_(1.0)\n")
    clipping = next(r for r in rule.load().rules.values() if r.code == "FSDP401")
    monkeypatch.setattr(rule, "load", lambda *_: rule.Registry({**RULES, "FSDP401": clipping}))
    monkeypatch.setattr(clipping.module, "decide", broken)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "FSDP401 failed here: KeyError: 'lost' (this is a defect of fsdp-migrate" in answer.err
    assert "fully_shard" in (here / "a.py").read_text()
    assert "fully_shard" not in (here / "b" / "b.py").read_text()


def test_any_other_crash_is_one_line_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "a.py").write_text(WRAPS)
    monkeypatch.setattr(write, "write", broken)
    monkeypatch.setattr(sys, "argv", ["fsdp-migrate", "rewrite", "a.py"])
    monkeypatch.delenv(ending.TRACEBACK, raising=False)
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "KeyError: 'lost' (this is a defect of fsdp-migrate" in said
    monkeypatch.setenv(ending.TRACEBACK, "1")
    with pytest.raises(KeyError):
        entry.main()


def test_interruption_says_that_nothing_was_written(
    here: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    (here / "a.py").write_text(WRAPS)
    monkeypatch.setattr(engine, "rewrite", interrupted)
    answer = run("rewrite", "a.py")
    assert (answer.code, answer.err) == (2, "interrupted: nothing was written\n")


def test_interruption_elsewhere_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "undo", interrupted)
    monkeypatch.setattr(sys, "argv", ["fsdp-migrate", "undo"])
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert (stop.value.code, capsys.readouterr().err) == (2, "interrupted\n")


# -- the process ----------------------------------------------------------------------------------


def process(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "fsdp_migrate", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, check=False, env={**os.environ, **environment}
    )


def test_an_ascii_terminal_is_no_reason_to_fail(here: Path) -> None:
    (here / "größe.py").write_text(WRAPS.replace("model", "größe"), encoding="utf-8")
    answer = process("check", ".", cwd=here, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert answer.returncode == 1
    assert b"gr\\xf6\\xdfe.py:5:12" in answer.stdout


def test_a_closed_pipe_is_no_error(demo: Path) -> None:
    command = f"{sys.executable} -m fsdp_migrate check . | head -n 1"
    answer = subprocess.run(command, shell=True, cwd=demo, capture_output=True, check=True)
    assert answer.stdout.count(b"\n") == 1
    assert not answer.stderr


def test_a_second_process_prints_the_same(demo: Path) -> None:
    first, second = (
        process("rewrite", "--dry-run", ".", cwd=demo, PYTHONHASHSEED=seed) for seed in "12"
    )
    assert first.stdout == second.stdout
    assert first.returncode == 1


def test_files_above_the_working_directory_are_named_by_the_way_there(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer for a pull request has no path of the machine in it."""
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    (project / "model.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
    )
    monkeypatch.chdir(project / "scripts")
    answer = run("check", "..", "--format", "json")
    assert {site["path"] for site in json.loads(answer.out)["sites"]} == {"../model.py"}
    monkeypatch.chdir(tmp_path)
    answer = run("check", "project", "--format", "json")
    assert {site["path"] for site in json.loads(answer.out)["sites"]} == {"project/model.py"}
