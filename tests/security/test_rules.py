"""Rules of a project's own run by their owner's word alone, and cannot make a run look better."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.helpers.commandline import Answer
from tests.helpers.terminal import at_terminal

SITE = "from torch.distributed.fsdp import FlatParameter\n\nFlatParameter()\n"
WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nm = FSDP(net)\n"
RULE = '''"""Ours.

More of it.
"""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP950", name="ours", handles=("FlatParameter",))
{top}

def decide(site, study):
    {body}
    return study.left(site, "FSDP950", "as ours says", "do it")
'''
RAN = "open({!r}, 'w').close()"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a site that a rule of its own handles, and a user without configuration."""
    root = tmp_path / "project"
    (root / "rules").mkdir(parents=True)
    (root / "a.py").write_text(SITE)
    (root / "pyproject.toml").write_text('[tool.fsdp-migrate]\nrule-paths = ["rules"]\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("FSDP_MIGRATE_CONFIG", raising=False)
    monkeypatch.delenv("FSDP_MIGRATE_TRACEBACK", raising=False)
    return root


def write(project: Path, *, top: str = "", body: str = "pass") -> Path:
    path = project / "rules" / "FSDP950_ours.py"
    path.write_text(RULE.format(top=top, body=body))
    return path


def planted(project: Path) -> Path:
    """Plant a rule that leaves a mark where it is run; the mark."""
    mark = project.parent / "ran"
    write(project, top=RAN.format(str(mark)))
    return mark


def run(project: Path, *arguments: str, **environment: str) -> Answer:
    answer = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", *arguments],
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    return Answer(answer.returncode, answer.stdout, answer.stderr)


# -- nobody said so -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("check", "."),
        ("check", "a.py"),
        ("check", "--format", "html", "."),
        ("check", "--select", "FSDP950", "."),
        ("check", "--ignore", "FSDP950", "."),
        ("check", "-q", "."),
        ("rewrite", "."),
        ("rewrite", "--dry-run", "."),
        ("explain", "a.py:3"),
    ],
    ids=" ".join,
)
def test_without_a_word_no_rule_of_the_project_runs(
    project: Path, command: tuple[str, ...]
) -> None:
    mark = planted(project)
    answer = run(project, *command)
    assert not mark.exists()
    assert answer.code == 1, answer.err
    assert "own rules in rules were NOT loaded" in answer.err
    assert "--trust-rules" in answer.err
    assert f'trust-rules = ["{project}"]' in answer.err


def test_pages_of_untrusted_rules_are_read_and_not_run(project: Path) -> None:
    mark = planted(project)
    assert "FSDP950  ours" in run(project, "explain").out
    assert "More of it." in run(project, "explain", "FSDP950").out
    assert "More of it." in run(project, "explain", "FlatParameter").out
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    ["(", "\xff", "x" * 10, "RULE = Rule(handles=[f()])", "EXAMPLES = [1]", "a" + "[" * 9999],
    ids=["syntax", "encoding", "nothing", "handles", "examples", "deep"],
)
def test_a_page_that_is_none_is_no_crash(project: Path, text: str) -> None:
    (project / "rules" / "FSDP950_ours.py").write_bytes(text.encode("latin-1"))
    for topic in ((), ("FSDP950",), ("FSDP101",), ("no_sync",)):
        answer = run(project, "explain", *topic)
        assert answer.code == 0, answer.err


def test_a_project_cannot_replace_our_pages(project: Path) -> None:
    (project / "rules" / "FSDP101_wrap.py").write_text('"""Theirs."""\n')
    assert "Theirs" not in run(project, "explain", "FSDP101").out


def test_a_rule_that_is_not_loaded_makes_nothing_greener(project: Path) -> None:
    """What it would have said nobody knows: not even what all else excuses is a success."""
    planted(project)
    (project / "a.py").write_text(SITE.replace("()\n", "()  # fsdp-migrate: leave\n"))
    for command in (("check", "--exit-zero"), ("check", "--min-coverage", "0"), ("rewrite",)):
        assert run(project, *command, ".").code == 1
        assert run(project, *command, "--trust-rules", ".").code == 0
    (project / "a.py").write_text("import torch\n")
    assert run(project, "check", ".").code == 0, "no rule would have been asked"


def test_reports_say_that_rules_were_not_loaded(project: Path) -> None:
    planted(project)
    (note,) = json.loads(run(project, "check", "--format", "json", ".").out)["notes"]
    assert "NOT loaded" in note
    assert "NOT loaded" in run(project, "check", "--format", "markdown", ".").out
    assert "NOT loaded" in run(project, "check", "--format", "html", ".").out


# -- the owner's word -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("check", "."), ("rewrite", "."), ("explain", "a.py:3")])
def test_the_option_is_the_owners_word(project: Path, command: tuple[str, ...]) -> None:
    mark = planted(project)
    answer = run(project, *command, "--trust-rules")
    assert mark.exists()
    assert answer.code == 1
    assert "FSDP950" in answer.out
    assert "own rules in rules are loaded and run: --trust-rules was given" in answer.err


def configured(project: Path, text: str) -> Path:
    path = project.parent / "mine.toml"
    path.write_text(text)
    return path


def test_the_users_configuration_is_the_owners_word(project: Path) -> None:
    mark = planted(project)
    path = configured(project, f'trust-rules = ["/elsewhere", "{project}"]\n')
    answer = run(project, "check", ".", FSDP_MIGRATE_CONFIG=str(path))
    assert mark.exists()
    assert f"trust-rules in {path} names this project" in answer.err


def test_the_users_configuration_lies_where_the_system_keeps_it(project: Path) -> None:
    mark = planted(project)
    folder = project.parent / "xdg" / "fsdp-migrate"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'trust-rules = ["{project}"]\n')
    run(project, "check", ".", XDG_CONFIG_HOME=str(folder.parent))
    assert mark.exists()


@pytest.mark.parametrize("other", ["{}/rules", "{}/..", "/", "{}x"])
def test_a_word_about_another_project_is_none(project: Path, other: str) -> None:
    mark = planted(project)
    path = configured(project, f'trust-rules = ["{other.format(project)}"]\n')
    assert run(project, "check", ".", FSDP_MIGRATE_CONFIG=str(path)).code == 1
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trust-rules = ['.']", "'.' is not an absolute path"),
        ("trust-rules = 'x'", "must be a list of strings"),
        ("trust = []", "has no key 'trust'"),
        ("(", "mine.toml"),
    ],
)
def test_a_wrong_configuration_is_an_error(project: Path, text: str, said: str) -> None:
    mark = planted(project)
    answer = run(project, "check", ".", FSDP_MIGRATE_CONFIG=str(configured(project, text)))
    assert answer.code == 2
    assert said in answer.err
    assert not mark.exists()


@pytest.mark.parametrize("how", ["absolute", "relative", "link in", "link out", "home"])
def test_a_project_cannot_trust_itself(project: Path, how: str) -> None:
    mark = planted(project)
    text = f'trust-rules = ["{project}"]\n'
    inside = project / ".config" / "fsdp-migrate" / "config.toml"
    inside.parent.mkdir(parents=True)
    if how == "link out":
        inside.symlink_to(configured(project, text))
    else:
        inside.write_text(text)
    link = project.parent / "link.toml"
    link.symlink_to(inside)
    named = {"relative": str(inside.relative_to(project)), "link in": str(link)}
    environment = {"FSDP_MIGRATE_CONFIG": named.get(how, str(inside))}
    if how == "home":
        environment = {"XDG_CONFIG_HOME": str(project / ".config")}
    answer = run(project, "check", ".", **environment)
    assert answer.code == 2, answer.err
    assert "cannot trust itself" in answer.err
    assert not mark.exists()


# -- rules from elsewhere -------------------------------------------------------------------------


@pytest.mark.parametrize("trust", [(), ("--trust-rules",)])
@pytest.mark.parametrize(
    "how", ["parent", "absolute", "directory link", "file link", "pipe", "nul"]
)
def test_what_leads_out_of_the_project_is_refused(
    project: Path, how: str, trust: tuple[str, ...]
) -> None:
    mark = planted(project)
    outside = project.parent / "outside"
    (project / "rules").rename(outside)
    rules = project / "rules"
    name = {"parent": "../outside", "absolute": str(outside), "nul": "a\\u0000b"}.get(how, "rules")
    if how == "directory link":
        rules.symlink_to(outside)
    else:
        rules.mkdir()
    if how == "file link":
        (rules / "FSDP950_ours.py").symlink_to(outside / "FSDP950_ours.py")
    if how == "pipe":
        os.mkfifo(rules / "FSDP950_ours.py")
    (project / "pyproject.toml").write_text(f'[tool.fsdp-migrate]\nrule-paths = ["{name}"]\n')
    for command in (("check", *trust, "."), ("rewrite", *trust, "."), ("explain", "FSDP950")):
        answer = run(project, *command)
        assert answer.code == 2
        assert "rule-paths" in answer.err
        assert answer.err.startswith("error: pyproject.toml")
    assert not mark.exists()


def test_a_compiled_file_beside_a_rule_is_neither_run_nor_made(project: Path) -> None:
    mark = project.parent / "ran"
    rule = write(project, top=RAN.format(str(mark)))
    program = (
        "import py_compile as p, sys;"
        "p.compile(sys.argv[1], invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)"
    )
    subprocess.run([sys.executable, "-c", program, rule], check=True)
    assert list((project / "rules" / "__pycache__").iterdir())
    write(project)
    assert run(project, "check", "--trust-rules", ".").code == 1
    assert not mark.exists()
    for file in (project / "rules" / "__pycache__").iterdir():
        file.unlink()
    run(project, "check", "--trust-rules", ".")
    assert not list((project / "rules" / "__pycache__").iterdir())


# -- how a rule may end a process -----------------------------------------------------------------

FINALIZER = "class Last:\n    def __del__(self): import {0}; {0}.{1}(0)\nlast = [Last()]"
ENDINGS = {
    "exit at import": {"top": "raise SystemExit(0)"},
    "base exception at import": {"top": "raise BaseException('x')"},
    "os._exit at import": {"top": "import os; os._exit(0)"},
    "signal at import": {"top": "import os; os.kill(os.getpid(), 9)"},
    "exit": {"body": "raise SystemExit(0)"},
    "generator exit": {"body": "raise GeneratorExit"},
    "interruption": {"body": "raise KeyboardInterrupt"},
    "os._exit": {"body": "import os; os._exit(0)"},
    "signal": {"body": "import os; os.kill(os.getpid(), 9)"},
    "termination": {"body": "import os, time; os.kill(os.getpid(), 15); time.sleep(9)"},
    "abort": {"body": "import os; os.abort()"},
    "fork": {"body": "import os\n    if os.fork(): os._exit(0)"},
    "closed files": {"body": "import os; os.closerange(3, 99); os._exit(0)"},
    "nothing": {"body": "return None"},
    "another's answer": {"body": "import dataclasses; site = dataclasses.replace(site)"},
    "no site": {
        "body": "import dataclasses\n    return dataclasses.replace("
        "study.left(site, 'FSDP950', 'x', 'y'), kept=True)"
    },
    "no code": {"body": "return study.left(site, '\"><script>', 'x', 'y')"},
    "finalizer": {
        "body": FINALIZER.format("os", "_exit").replace("\n", "\n    ") + "; del last[:]"
    },
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_rule_cannot_end_the_run_as_a_success(project: Path, how: str) -> None:
    write(project, **ENDINGS[how])
    for command in (("check", "--exit-zero"), ("rewrite", "--allow-dirty")):
        answer = run(project, *command, "--trust-rules", ".")
        assert answer.code == 2, answer.out + answer.err
        said = answer.err.splitlines()[-1]
        assert said.startswith(("error: ", "interrupted")), answer.err
    assert (project / "a.py").read_text().endswith("FlatParameter()\n")


@pytest.mark.parametrize(
    "top",
    [
        "import atexit, os; atexit.register(os._exit, 0)",
        "import atexit, sys; atexit.register(sys.exit, 0)",
        FINALIZER.format("os", "_exit"),
        FINALIZER.format("sys", "exit"),
        "import threading, time, os\n"
        "class T(threading.Thread):\n"
        "    def run(self): threading.main_thread().join(); os._exit(0)\n"
        "T().start()",
    ],
    ids=["atexit", "atexit exit", "finalizer", "finalizer exit", "thread"],
)
def test_what_a_rule_leaves_for_the_end_is_not_run(project: Path, top: str) -> None:
    write(project, top=top)
    answer = run(project, "check", "--trust-rules", ".")
    assert answer.code == 1
    assert "as ours says" in answer.out


def test_other_sites_are_reported_beside_a_rule_that_fails(project: Path) -> None:
    write(project, body="raise SystemExit(0)")
    answer = run(project, "check", "--trust-rules", ".")
    assert "FSDP950 failed here: SystemExit: 0" in answer.err
    assert "defect of fsdp-migrate" not in answer.err


def test_what_is_written_is_the_same_in_a_process_of_its_own(project: Path) -> None:
    (project / "b.py").write_text(WRAPS)
    write(project)
    begin = "diff --git a/b.py"
    apart = run(project, "rewrite", "--dry-run", "--trust-rules", ".").out.partition(begin)[2]
    (project / "pyproject.toml").write_text("")
    assert "fully_shard" in apart
    assert run(project, "rewrite", "--dry-run", ".").out.partition(begin)[2] == apart


def test_a_reader_that_goes_away_is_no_error(project: Path) -> None:
    write(project)
    command = f"{sys.executable} -m fsdp_migrate check --trust-rules . | head -n 1"
    answer = subprocess.run(
        command, shell=True, cwd=project, capture_output=True, check=True, text=True
    )
    assert answer.stdout.count("\n") == 1
    assert "error" not in answer.stderr


def test_a_terminal_works_as_before(project: Path) -> None:
    write(project)
    (project / "a.py").write_text(WRAPS)
    answer = at_terminal(
        project, "rewrite", "--review", "--trust-rules", "--allow-dirty", ".", answers="m"
    )
    assert answer.code == 0, answer.out
    assert "fully_shard" in (project / "a.py").read_text()


def test_interruption_at_a_terminal_is_one_line(project: Path) -> None:
    write(project)
    (project / "a.py").write_text(WRAPS)
    answer = at_terminal(
        project, "rewrite", "--review", "--trust-rules", "--allow-dirty", ".", answers="^"
    )
    assert answer.code == 2
    assert answer.out.count("interrupted: nothing was written") == 1
    assert "error" not in answer.out
    assert (project / "a.py").read_text() == WRAPS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_work_too(project: Path, number: signal.Signals) -> None:
    ready = project.parent / "ready"
    pid = f"open({str(ready)!r}, 'w').write(str(os.getpid()))"
    write(project, body=f"import os, time; {pid}; time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-m", "fsdp_migrate", "check", "--trust-rules", "."],
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        wait_for(lambda: ready.exists() and bool(ready.read_text()))
        process.send_signal(number)
        code = process.wait(timeout=20)
    assert code == (2 if number == signal.SIGINT else -number)
    worker = int(ready.read_text())
    wait_for(lambda: not Path(f"/proc/{worker}").exists())


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_without_own_rules_nothing_is_forked(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(project)

    def forbidden() -> int:
        raise AssertionError("forked")

    monkeypatch.setattr(os, "fork", forbidden)
    monkeypatch.chdir(project)
    from fsdp_migrate.cli.check import check
    from fsdp_migrate.cli.options import Check

    assert check(Check(paths=[Path()])) == 1
    (project / "pyproject.toml").write_text("")
    assert check(Check(paths=[Path()], trust_rules=True)) == 1
    assert not session.run([Path()]).incomplete


# -- verify ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", [False, True])
def test_verify_runs_no_rule_without_a_word(project: Path, trusted: bool) -> None:
    """It ends before anything is trained: there is nothing to rewrite."""
    mark = planted(project)
    (project / "train.py").write_text("")
    word = ["--trust-rules"] if trusted else []
    answer = run(project, "verify", "train.py", *word)
    assert answer.code == 2
    assert mark.exists() == trusted
    assert ("NOT loaded" in answer.err) != trusted


def test_verify_trusts_the_project_and_not_its_copy(project: Path) -> None:
    mark = planted(project)
    (project / "train.py").write_text("")
    path = configured(project, f'trust-rules = ["{project}"]\n')
    run(project, "verify", "train.py", FSDP_MIGRATE_CONFIG=str(path))
    assert mark.exists()


def test_a_rule_cannot_end_verify_as_a_success(project: Path) -> None:
    write(project, top="import os; os._exit(0)")
    (project / "train.py").write_text("")
    answer = run(project, "verify", "train.py", "--trust-rules")
    assert answer.code == 2
    assert "ended with exit code 0 before its work was done" in answer.err
