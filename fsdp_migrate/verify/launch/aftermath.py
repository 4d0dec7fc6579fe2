"""Read what a run left behind and say how it ended."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.launch import processes
from fsdp_migrate.verify.launch.ending import End, Ending, RankTrace
from fsdp_migrate.verify.launch.launcher import rank_logs
from fsdp_migrate.verify.launch.watch import Watched, read_pulse

_TAIL = 12
_POLL_S = 0.2
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$')
_INSTALLED = re.compile(r"((?:^|[\"' ]))/[^\"'\n]*?/(?:site|dist)-packages/", re.MULTILINE)
_GUARD = re.compile(r"^fsdp-migrate FSDP\d{3}: ", re.MULTILINE)  # which left without a traceback
_NO_TORCH = re.compile(r"No module named '?torch\b")
_SIGNALS = {6: "SIGABRT", 9: "SIGKILL (out of memory?)", 11: "SIGSEGV", 15: "SIGTERM"}


def read_ending(watched: Watched, *, folder: Path, logs: Path, tree: Path) -> Ending:
    """The ending of a run that ended as ``watched``; ``tree`` is the scratch copy it ran in."""
    common: dict[str, Any] = {
        "folder": folder,
        "logs": logs,
        "seconds": watched.seconds,
        "slowest_gap": watched.slowest_gap,
        "notes": _recorder_trouble(folder),
    }
    if (folder / "spawns").exists():
        says = (
            "the program makes its own processes (torch.multiprocessing.spawn): "
            "start it as a single one, with --launcher python"
        )
        return Ending(end=End.SPAWNS, says=says, **common)
    if watched.hung:
        return _hung(watched, folder, tree, common)
    ends, stepped = _ends(folder)
    complete = bool(ends) and all(ends.values())
    exceptions = _exceptions(folder)
    if exceptions:
        return _raised(exceptions[0], tree, common)
    status = _exit_status(watched, logs)
    is_stopped = status > 0 and _GUARD.search(_log_tails(logs)) is not None
    if watched.code != 0 and not (complete and (stepped or status <= 0) and not is_stopped):
        return _died(watched, folder, logs, tree, common)
    boots = processes.marked(folder)
    if not boots:
        says = "the recorder did not start in any process of the run"
        return Ending(end=End.DEFEATED, says=says, **common)
    if not stepped:
        says = _why_unrecorded(folder, ends)
        return Ending(end=End.UNRECORDED, says=says, full=_log_tails(logs), **common)
    if not complete:
        missing = sorted(rank for rank, ended in ends.items() if not ended)
        says = f"rank {missing[0]} ended without an error and without finishing its record"
        return Ending(end=End.CRASHED, says=says, failed_rank=missing[0], **common)
    if status > 0:
        common["status"] = status
    elif watched.code != 0:
        # Seen with gloo and plain DDP as well: everything is recorded, then the process aborts
        # while the interpreter shuts down.
        note = f"exit code {watched.code} at shutdown, after all records were complete"
        common["notes"] = (*common["notes"], note)
    return Ending(end=End.FINISHED, **common)


def _exit_status(watched: Watched, logs: Path) -> int:
    """The exit status of the rank that failed first, negative for a signal; else the launcher's."""
    found = _failed_rank((logs / "launcher.log").read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) if found is not None else watched.code


def _failed_rank(launcher: str) -> re.Match[str] | None:
    return re.search(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)", launcher)


def _recorder_trouble(folder: Path) -> tuple[str, ...]:
    """Why the recorder did not start in some process, whatever else happened to it."""
    found = []
    for path in folder.glob("boot-error-*.txt"):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        found.append(f"the recorder failed to start: {lines[-1] if lines else path.name}")
    return tuple(dict.fromkeys(found))


def complete_ranks(folder: Path) -> set[int]:
    """The ranks whose records in ``folder`` are complete."""
    ends, _ = _ends(folder)
    return {rank for rank, ended in ends.items() if ended}


def await_others(folder: Path, patience: float) -> None:
    """Wait until the ranks on other machines have ended as well, for ``patience`` seconds.

    Records may show up late on a shared file system. What is missing then is reported by
    :func:`read_ending`.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        complete = complete_ranks(folder)
        if any(folder.glob("exception-*.json")) or (complete and len(complete) == _world(folder)):
            return
        time.sleep(_POLL_S)


def _world(folder: Path) -> int:
    """The number of ranks as the records tell it; 0 when there are none."""
    for path in folder.glob("rank-*.jsonl"):
        with open(path, encoding="utf-8") as lines:
            first = lines.readline()
        if first.endswith("\n"):
            return int(json.loads(first)["world"])
    return 0


def _ends(folder: Path) -> tuple[dict[int, bool], bool]:
    """For every recorded rank whether its record is complete; and whether any optimizer stepped."""
    ends: dict[int, bool] = {}
    stepped = False
    for path in folder.glob("rank-*.jsonl"):
        rank = int(path.stem.removeprefix("rank-"))
        text = path.read_text(encoding="utf-8", errors="replace")
        ends[rank] = '{"t":"end"' in text
        stepped = stepped or '{"t":"after"' in text or '{"t":"timed"' in text
    return ends, stepped


def _exceptions(folder: Path) -> list[dict[str, Any]]:
    """Uncaught exceptions of all ranks, earliest first; a missing peer is a later symptom."""
    found = []
    for path in folder.glob("exception-*.json"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # killed while writing
            continue
    return sorted(found, key=lambda record: float(record["time"]))


def _raised(record: dict[str, Any], tree: Path, common: dict[str, Any]) -> Ending:
    rank = int(record["rank"]) if str(record["rank"]).isdigit() else None
    full = clean(record["traceback"], tree)
    message = clean(record["message"], tree).strip().splitlines()
    says = f"{record['kind']}: {message[0]}" if message else str(record["kind"])
    if record.get("unit"):
        says += f": {record['unit']}"
    return Ending(
        end=End.CRASHED,
        says=says,
        failed_rank=rank,
        traceback=shorten(full),
        full=full,
        **common,
    )


def _died(watched: Watched, folder: Path, logs: Path, tree: Path, common: dict[str, Any]) -> Ending:
    """A run that ended badly, but by no exception that was seen: a signal, or an exit code."""
    launcher = (logs / "launcher.log").read_text(encoding="utf-8", errors="replace")
    found = _failed_rank(launcher)
    fatal = [
        text
        for path in sorted(folder.glob("stacks-*.txt"))
        if (text := path.read_text(encoding="utf-8", errors="replace")).startswith("Fatal")
    ]
    if found is None:
        lines = [line for line in launcher.splitlines() if line.strip()]
        says = lines[-1] if lines else f"exit code {watched.code}"
        if _NO_TORCH.search(launcher):
            says = (
                "torch is not installed for this interpreter: name the project's own with "
                "--python, or pip install 'fsdp-migrate[verify]'"
            )
        return Ending(
            end=End.CRASHED, says=says, traceback=tuple(lines[-_TAIL:]), full=launcher, **common
        )
    code, rank = int(found[1]), int(found[2])
    streams = rank_logs(logs).get(rank, {})
    stderr = streams["stderr"].read_text(errors="replace") if "stderr" in streams else ""
    full = clean("\n".join([*fatal, stderr]), tree)
    lines = [line for line in full.splitlines() if line.strip()]
    shown = stack_lines(clean(fatal[0], tree)) if fatal else lines[-_TAIL:]
    if code < 0:
        says = f"rank {rank} was ended by signal {_SIGNALS.get(-code, -code)}"
    else:  # sys.exit("text") and argparse say why in their last line
        says = ": ".join([f"rank {rank} ended with exit code {code}", *lines[-1:]])
    return Ending(
        end=End.CRASHED,
        says=says,
        failed_rank=rank,
        traceback=tuple(shown),
        full=full,
        **common,
    )


def _why_unrecorded(folder: Path, ends: dict[int, bool]) -> str:
    if any(folder.glob("boot-error-*.txt")):
        return "the recorder failed to start"
    if not ends:
        return "no collective, no backward and no optimizer step was seen"
    return (
        "the program ended without a single step of a torch.optim.Optimizer; "
        "training loops of other kinds cannot be judged"
    )


def _log_tails(logs: Path) -> str:
    parts = []
    for rank, streams in sorted(rank_logs(logs).items()):
        for stream, path in sorted(streams.items()):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
            if lines:
                parts.append("\n".join([f"rank {rank} {stream}:", *lines]))
    return "\n".join(parts)


def _hung(watched: Watched, folder: Path, tree: Path, common: dict[str, Any]) -> Ending:
    ranks = tuple(_traces(folder, tree))
    says = f"no rank made any progress for {watched.silent_for:.0f} s"
    if not ranks:
        says += "; none had begun to train"
    counts = {trace.issued: trace.operation for trace in ranks}
    operations = {trace.operation for trace in ranks if trace.operation != "-"}
    if len(counts) == 1 and len(operations) > 1:
        pairs = ", ".join(f"rank {trace.rank} {trace.operation}" for trace in ranks)
        says += f"; the ranks wait in different collectives ({pairs})"
    elif len(counts) > 1:
        pairs = ", ".join(f"rank {trace.rank} issued {trace.issued}" for trace in ranks)
        says += f"; the ranks have issued different numbers of collectives ({pairs})"
    full = "\n".join(
        f"{path.name}\n{path.read_text(encoding='utf-8', errors='replace')}"
        for path in sorted(folder.glob("stacks-*.txt"))
    )
    return Ending(end=End.HUNG, says=says, ranks=ranks, full=clean(full, tree), **common)


def _traces(folder: Path, tree: Path) -> list[RankTrace]:
    pids: dict[int, int] = {
        int(rank): pid for pid, rank in processes.marked(folder).items() if rank.isdigit()
    }
    for path in folder.glob("rank-*.jsonl"):
        with open(path, encoding="utf-8") as lines:
            meta = json.loads(lines.readline() or "{}")
        if "pid" in meta:
            pids[int(meta["rank"])] = int(meta["pid"])
    traces = []
    for rank, pid in sorted(pids.items()):
        issued, steps, phase, operation, state = read_pulse(folder / f"rank-{rank}.pulse")
        if phase == "-":
            last = "had not begun to communicate or train"
        else:
            doing = "in" if state == "ENTER" else "after"
            what = "backward" if operation == "-" and state == "ENTER" else operation
            what = "an optimizer step" if what == "-" else what
            _, _, awaited = what.partition(":")
            if awaited:
                doing, what, operation = "waiting for", awaited, awaited
            number = f" (collective {issued})" if operation != "-" else ""
            last = f"{doing} {what}{number}, step {steps + 1}, {phase}"
        dump = folder / f"stacks-{pid}.txt"
        text = dump.read_text(encoding="utf-8", errors="replace") if dump.exists() else ""
        traces.append(
            RankTrace(rank, last, issued, operation, tuple(stack_lines(clean(text, tree))))
        )
    return traces


def stack_lines(text: str) -> list[str]:
    """The stack of the main thread in a ``faulthandler`` dump, most recent call last.

    ``faulthandler`` prints the thread that got the signal last or marks it as current, most recent
    call first. Of torch's frames only the innermost is kept.
    """
    threads = re.split(r"^(?=Thread 0x|Current thread 0x)", text, flags=re.MULTILINE)
    dumps = [thread for thread in threads if "most recent call first" in thread]
    if not dumps:
        return []
    main = next((d for d in dumps if d.startswith("Current")), dumps[-1])
    frames = [match for line in main.splitlines() if (match := _FRAME.match(line))]
    return _program_frames([(m["file"], m["line"], m["function"]) for m in reversed(frames)])


def shorten(text: str) -> tuple[str, ...]:
    """The program's own frames of a traceback, the innermost frame, and the error."""
    lines = text.rstrip().splitlines()
    frames = [match for line in lines if (match := _FRAME.match(line))]
    last = max((i for i, line in enumerate(lines) if _FRAME.match(line)), default=-1)
    error = [line for line in lines[last + 1 :] if line and not line.startswith("    ")]
    shown = _program_frames([(m["file"], m["line"], m["function"]) for m in frames])
    return (*shown, *error[:6])


def _program_frames(frames: list[tuple[str, str, str]]) -> list[str]:
    own = [not Path(file).is_absolute() and not file.startswith("<") for file, _, _ in frames]
    return [
        f"{file}:{line} in {function}"
        for i, (file, line, function) in enumerate(frames)
        if own[i] or i == len(frames) - 1
    ]


def clean(text: str, tree: Path) -> str:
    """``text`` with paths below the scratch copy, and below site-packages, made relative."""
    for root in {str(tree), str(tree.resolve())}:
        text = text.replace(root + "/", "")
    return _INSTALLED.sub(r"\1<installed>/", text)
