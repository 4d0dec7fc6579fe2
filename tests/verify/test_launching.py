"""Scratch copies, environments, and reading what a run left behind. No torch involved."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.inject.config import VARIABLE, Config, Noise
from fsdp_migrate.verify.launch import aftermath, launcher
from fsdp_migrate.verify.launch.ending import End
from fsdp_migrate.verify.launch.environment import environment
from fsdp_migrate.verify.launch.scratch import copy_tree
from fsdp_migrate.verify.launch.watch import Command, Patience, Watched, watch

FINISHED = Watched(code=0, seconds=1.0, hung=False, silent_for=0.0, slowest_gap=0.1)
FAILED = Watched(code=1, seconds=1.0, hung=False, silent_for=0.0, slowest_gap=0.1)


# --- whether there is a GPU ----------------------------------------------------------------------


def test_a_gpu_that_is_hidden_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(launcher, "ACCELERATORS", {str(device): "CUDA_VISIBLE_DEVICES"})
    assert not launcher.has_accelerator({})
    device.touch()
    assert launcher.has_accelerator({})
    assert launcher.has_accelerator({"CUDA_VISIBLE_DEVICES": "1"})
    assert not launcher.has_accelerator({"CUDA_VISIBLE_DEVICES": ""})
    assert not launcher.has_accelerator({"CUDA_VISIBLE_DEVICES": "-1"})


# --- scratch copies ------------------------------------------------------------------------------


def test_a_copy_leaves_out_what_is_no_input(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in (".git", "__pycache__", "pkg/__pycache__", "env", "pkg/data"):
        (source / folder).mkdir(parents=True)
        (source / folder / "file").write_text("x")
    (source / "env" / "pyvenv.cfg").touch()
    skipped = copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/pkg/data/file").read_text() == "x"
    assert skipped == [".git", "__pycache__", "env", "pkg/__pycache__"]
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["pkg"]


def test_writing_in_the_copy_never_reaches_the_original(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("safe")
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "file").write_text("original")
    (source / "link.txt").symlink_to(outside / "precious")
    (source / "out").symlink_to(outside)
    (source / "alias").symlink_to("inner")
    (source / "nowhere").symlink_to("missing")
    copy = tmp_path / "copy"
    skipped = copy_tree(source, copy)
    (copy / "link.txt").write_text("changed")
    (copy / "alias" / "file").write_text("changed")
    assert (outside / "precious").read_text() == "safe"
    assert (source / "inner" / "file").read_text() == "original"
    assert (copy / "inner" / "file").read_text() == "changed"
    assert skipped == ["out (a link out of the tree)", "nowhere"]


def test_shared_paths_are_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "data" / "big").mkdir(parents=True)
    (source / "weights.bin").write_text("w")
    copy_tree(source, tmp_path / "copy", share=["data/big", "weights.bin"])
    assert (tmp_path / "copy/data/big").is_symlink()
    assert (tmp_path / "copy/weights.bin").readlink() == (source / "weights.bin").resolve()
    assert not (tmp_path / "copy/data").is_symlink()


# --- environment ---------------------------------------------------------------------------------


def test_the_environment_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    config = Config(
        folder="f",
        run="r",
        max_steps=3,
        seed=1,
        trees=("a", "b"),
        noise=Noise(amplitude=2.0**-24, seed=5),
    )
    found = environment(config, extra={"WANDB_MODE": "disabled"}, scratch=tmp_path)
    assert "RANK" not in found
    assert found["PYTHONPATH"] == f"{inject.SITE}{os.pathsep}/mine"
    assert found["OMP_NUM_THREADS"] == "4"
    assert found["WANDB_MODE"] == "disabled"
    monkeypatch.setenv(VARIABLE, found[VARIABLE])
    assert Config.from_environment() == config


# --- what a run left -----------------------------------------------------------------------------


def rank_file(folder: Path, rank: int, *kinds: str) -> None:
    events = [{"t": "meta", "rank": rank, "pid": 1000 + rank}, *({"t": kind} for kind in kinds)]
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / f"boot-{rank}-{1000 + rank}").touch()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    for name in ("folder", "logs", "tree"):
        (tmp_path / name).mkdir()
    (tmp_path / "logs" / "launcher.log").touch()
    return {name: tmp_path / name for name in ("folder", "logs", "tree")}


def test_a_complete_run(places: dict[str, Path]) -> None:
    for rank in (0, 1):
        rank_file(places["folder"], rank, "after", "end")
    assert aftermath.read_ending(FINISHED, **places).end is End.FINISHED


def test_an_abort_after_complete_records_is_a_note(places: dict[str, Path]) -> None:
    for rank in (0, 1):
        rank_file(places["folder"], rank, "after", "end")
    failed = "failed (exitcode: -6) local_rank: 1 (pid: 1001)\n"
    (places["logs"] / "launcher.log").write_text(failed)
    ending = aftermath.read_ending(FAILED, **places)
    assert (ending.end, ending.status) == (End.FINISHED, 0)
    assert "at shutdown" in ending.notes[0]


def test_an_exit_status_is_kept_of_a_program_that_has_trained(places: dict[str, Path]) -> None:
    failed = "failed (exitcode: 3) local_rank: 1 (pid: 1001)\n"
    (places["logs"] / "launcher.log").write_text(failed)
    for rank in (0, 1):
        rank_file(places["folder"], rank, "end")
    assert aftermath.read_ending(FAILED, **places).end is End.CRASHED  # it never took a step
    for rank in (0, 1):
        rank_file(places["folder"], rank, "after", "end")
    ending = aftermath.read_ending(FAILED, **places)
    assert (ending.end, ending.status) == (End.FINISHED, 3)


def test_an_exception_counts_even_when_the_records_are_complete(places: dict[str, Path]) -> None:
    rank_file(places["folder"], 0, "after", "end")
    tree = places["tree"]
    record = {
        "rank": "0",
        "pid": 1000,
        "time": 5.0,
        "kind": "ValueError",
        "message": "no good",
        "traceback": (
            "Traceback (most recent call last):\n"
            f'  File "{tree}/train.py", line 3, in <module>\n    main()\n'
            '  File "/x/lib/python3/site-packages/torch/nn/f.py", line 9, in call\n    raise it\n'
            '  File "/x/lib/python3/site-packages/torch/nn/g.py", line 8, in deep\n    raise it\n'
            "ValueError: no good\n"
        ),
    }
    later = {**record, "rank": "1", "time": 6.0, "message": "connection closed by peer"}
    (places["folder"] / "exception-1000.json").write_text(json.dumps(record))
    (places["folder"] / "exception-1001.json").write_text(json.dumps(later))
    ending = aftermath.read_ending(FAILED, **places)
    assert ending.end is End.CRASHED
    assert ending.failed_rank == 0
    assert ending.says == "ValueError: no good"
    assert ending.traceback == (
        "train.py:3 in <module>",
        "<installed>/torch/nn/g.py:8 in deep",
        "ValueError: no good",
    )


def test_a_rank_ended_by_a_signal(places: dict[str, Path]) -> None:
    rank_file(places["folder"], 0, "after")
    (places["logs"] / "launcher.log").write_text(
        "E torch.distributed.elastic: failed (exitcode: -11) local_rank: 0 (pid: 1000) of binary\n"
    )
    (places["folder"] / "stacks-1000.txt").write_text(
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x01 (most recent call first):\n"
        '  File "/x/site-packages/torch/t.py", line 7 in item\n'
        f'  File "{places["tree"]}/train.py", line 30 in main\n'
    )
    ending = aftermath.read_ending(FAILED, **places)
    assert ending.end is End.CRASHED
    assert "SIGSEGV" in ending.says
    assert ending.traceback == ("train.py:30 in main", "<installed>/torch/t.py:7 in item")


def test_no_torch(places: dict[str, Path]) -> None:
    (places["logs"] / "launcher.log").write_text("/usr/bin/python: No module named torch\n")
    assert "torch is not installed" in aftermath.read_ending(FAILED, **places).says


def test_no_recorder_at_all(places: dict[str, Path]) -> None:
    assert aftermath.read_ending(FINISHED, **places).end is End.DEFEATED


def test_no_optimizer_step(places: dict[str, Path]) -> None:
    rank_file(places["folder"], 0, "model", "end")
    ending = aftermath.read_ending(FINISHED, **places)
    assert ending.end is End.UNRECORDED
    assert "torch.optim.Optimizer" in ending.says


def test_a_rank_that_left_early(places: dict[str, Path]) -> None:
    rank_file(places["folder"], 0, "after", "end")
    rank_file(places["folder"], 1, "after")
    ending = aftermath.read_ending(FINISHED, **places)
    assert ending.end is End.CRASHED
    assert ending.failed_rank == 1


def test_ranks_that_wait_in_different_collectives(places: dict[str, Path]) -> None:
    for rank, what in enumerate(("wait_tensor:all_reduce ENTER", "all_gather_single ENTER")):
        rank_file(places["folder"], rank)
        pulse = places["folder"] / f"rank-{rank}.pulse"
        pulse.write_text(f"99 57 {rank} clip {what}".ljust(159) + "\n")
    hung = Watched(code=-1, seconds=60, hung=True, silent_for=30.0, slowest_gap=1.0)
    ending = aftermath.read_ending(hung, **places)
    assert ending.end is End.HUNG
    assert "different collectives (rank 0 all_reduce, rank 1 all_gather_single)" in ending.says
    assert ending.ranks[0].last == "waiting for all_reduce (collective 57), step 1, clip"


# --- watching ------------------------------------------------------------------------------------


def watched(tmp_path: Path, code: str, patience: float) -> Watched:
    folder = tmp_path / "records"
    folder.mkdir()
    mark = f"watch-{tmp_path.name}-{os.getpid()}"  # of this test alone: others end theirs by it
    command = Command(
        [sys.executable, "-c", code],
        env={**os.environ, "MARK": mark},
        cwd=tmp_path,
        log=tmp_path / "logs" / "launcher.log",
    )
    return watch(
        command,
        run=mark,
        folder=folder,
        logs=tmp_path / "logs",
        patience=Patience(start=patience, steady=patience),
        on_step=lambda step: None,
    )


def test_a_silent_process_is_stopped(tmp_path: Path) -> None:
    found = watched(tmp_path, "import time; time.sleep(60)", 1.0)
    assert found.hung
    assert found.seconds < 20


def test_a_process_that_prints_is_alive(tmp_path: Path) -> None:
    code = "import time\nfor i in range(15): print(i, flush=True); time.sleep(0.2)"
    found = watched(tmp_path, code, 2.0)
    assert not found.hung
    assert found.code == 0


def test_children_do_not_outlive_the_run(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)\n"
        "print(child.pid, flush=True)"
    )
    watched(tmp_path, code, 10.0)
    pid = int((tmp_path / "logs" / "launcher.log").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_recorder_that_did_not_start_is_mentioned_whatever_happens(tmp_path: Path) -> None:
    folder, logs = tmp_path / "records", tmp_path / "logs"
    for place in (folder, logs):
        place.mkdir()
    (folder / "boot-error-7.txt").write_text("Traceback\nTypeError: odd\n")
    exception = {"rank": "0", "pid": 7, "time": 1.0, "kind": "RuntimeError", "message": "no GPU"}
    (folder / "exception-7.json").write_text(json.dumps({**exception, "traceback": ""}))
    ending = aftermath.read_ending(FAILED, folder=folder, logs=logs, tree=tmp_path)
    assert (ending.end, ending.says) == (End.CRASHED, "RuntimeError: no GPU")
    assert ending.notes == ("the recorder failed to start: TypeError: odd",)


def test_what_is_told_of_a_unit_follows_the_error(tmp_path: Path) -> None:
    folder, logs = tmp_path / "records", tmp_path / "logs"
    for place in (folder, logs):
        place.mkdir()
    exception = {"rank": "0", "pid": 7, "time": 1.0, "kind": "ValueError", "message": "Must\nfit"}
    told = {"traceback": "", "unit": "the root, as one unit, has a (x) and b (y)"}
    (folder / "exception-7.json").write_text(json.dumps({**exception, **told}))
    ending = aftermath.read_ending(FAILED, folder=folder, logs=logs, tree=tmp_path)
    assert ending.says == f"ValueError: Must: {told['unit']}"
