"""Work on several processes: the same output whatever their number, nothing lost to a crash."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fsdp_migrate import workers
from fsdp_migrate.cli import session
from fsdp_migrate.discovery import import_graph, search
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.rewriting import apply
from tests.helpers.terminal import heed_interrupts

MODEL = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap_{number}(model: torch.nn.Module) -> torch.nn.Module:
    return FSDP(model, use_orig_params=True)
"""
CALLER = """\
from wrap_{number} import wrap_{number}


def train(net, batches):
    net = wrap_{number}(net)
    for batch in batches:
        net(batch).backward()
        net.clip_grad_norm_(1.0)
"""
PLAIN = "import os\n\n\ndef path_{number}():\n    return os.getcwd()\n"
FILES = 12


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and thresholds at which its size is worth several processes."""
    for module in (search, import_graph, engine):
        monkeypatch.setattr(module, "MANY", 2)
    for number in range(FILES):
        for name, text in (("wrap", MODEL), ("call", CALLER), ("plain", PLAIN)):
            path = tmp_path / f"{name}_{number}.py"
            path.write_text(text.format(number=number), encoding="utf-8")
    (tmp_path / "broken.py").write_text("import torch.distributed.fsdp\ndef f(:\n", "utf-8")
    return tmp_path


def outcome(tree: Path, jobs: int) -> object:
    run = session.run([tree], jobs=jobs)
    decisions = [
        (d.site.module.display, d.site.position, d.code, d.outcome, d.message, d.help)
        for d in run.result.decisions
    ]
    found = run.found
    files = list(found.candidates), list(found.others), found.library
    return decisions, dict(run.result.changes), run.result.problems, files


def test_the_number_of_processes_changes_nothing(tree: Path) -> None:
    alone = outcome(tree, 1)
    assert outcome(tree, 4) == alone
    changes = alone[1]  # type: ignore[index]
    assert len(changes) >= FILES


def test_several_processes_are_used(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    shared_out = workers._shared_out

    def noted(answer: object, count: int, jobs: int) -> list[object]:
        found = shared_out(answer, count, jobs)  # type: ignore[arg-type]
        used.append(len(workers._running.workers))
        return found

    monkeypatch.setattr(workers, "_shared_out", noted)
    session.run([tree], jobs=1)
    assert not used
    session.run([tree], jobs=3)
    assert used == [3, 3, 3]  # what files mention, what they import, what becomes of them
    assert not workers._running.workers


def test_a_process_that_ends_costs_the_file_it_was_at(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, edited = os.getpid(), apply._edited

    def dies(module: object, *rest: object) -> str:
        if getattr(module, "name", "") == "wrap_5" and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return edited(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "_edited", dies)
    run = session.run([tree], jobs=2)
    ours = [p for p in run.result.problems if p.ours]
    assert [Path(p.display).name for p in ours] == ["wrap_5.py"]
    assert "process" in ours[0].message
    changed = {path.name for path in run.result.changes}
    assert "wrap_5.py" not in changed
    assert {f"wrap_{n}.py" for n in range(FILES) if n != 5} <= changed
    left = {d.site.module.path.name for d in run.result.decisions if d.outcome is Outcome.LEFT}
    assert "wrap_5.py" in left


def test_answers_come_in_order() -> None:
    items = list(range(100))
    assert workers.each(lambda n: n * n, items, jobs=3, least=1) == [n * n for n in items]


def test_what_an_item_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        workers.each(lambda n: 1 // n, [2, 1, 0, 3], jobs=2, least=1)


def test_every_item_gets_an_answer_whatever_ends() -> None:
    def answer(n: int) -> int:
        if n % 10 == 7:
            os._exit(3)
        return n

    found = workers.each(answer, range(40), jobs=2, least=1)
    assert found == [workers.Crash() if n % 10 == 7 else n for n in range(40)]


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.3])
def test_stopping_ends_the_processes(after_s: float) -> None:
    stopped = []

    def stop() -> None:
        while not stopped:  # what is stopped before it begins is not stopped
            time.sleep(after_s)
            workers.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    found = workers.each(lambda n: time.sleep(600), range(4), jobs=2, least=1)
    stopped.append(True)
    thread.join()
    assert found == [workers.Crash()] * 4
    assert not multiprocessing.active_children()


# It ends with an exit of its own: an interruption inside of ``exec``, which dataclasses and
# namedtuples of imported modules run, sets the exit status of CPython even where it was caught.
INTERRUPTED = """\
import os, sys, time
from fsdp_migrate import workers

def wait(n):
    os.write(1, b"at work\\n")
    time.sleep(600)

try:
    os.write(1, b"ready\\n")
    workers.each(wait, range(8), jobs=2, least=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(0)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, None])
def test_ctrl_c_is_answered_at_once(after_s: float | None) -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if after_s is None:
            assert process.stdout.readline() == "at work\n"
        else:
            time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        try:
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert out.splitlines()[-1] == "interrupted"
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):  # nobody of that terminal is left
        os.killpg(process.pid, 0)
