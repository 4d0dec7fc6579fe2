"""Run training programs before and after the rewrite, and compare what they print."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from fsdp_migrate.cli.study import study
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.verify.compare.observed import NOTHING, Observed, read
from fsdp_migrate.verify.compare.sites import Accounted, account
from tests.helpers.migrating import migrate, worst

REPOSITORY = Path(__file__).parents[2]
FIXTURES = REPOSITORY / "fixtures"
NUMBER = re.compile(r"[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|nan|inf)", re.IGNORECASE)


class Failed(AssertionError):
    """Some rank of a program did not end well."""


@dataclass(frozen=True)
class Run:
    """What the ranks of one run printed."""

    codes: tuple[int, ...]
    timed_out: bool
    output: tuple[str, ...]  # by rank
    errors: tuple[str, ...]
    models: tuple[list[dict[str, Any]], ...] = ()  # by rank, what :mod:`.observe` saw at the end
    observed: Observed = NOTHING  # where FSDP1 was used

    @property
    def was_unlucky(self) -> bool:
        """Whether gloo failed, as it does once in some thousand runs on a busy machine.

        Ranks miss each other while they connect, or one ends inside of torch's own C++ code
        ("double free or corruption" in a collective). No Python program does that twice by chance.
        """
        missed = any("DistNetworkError" in text for text in self.errors)
        return missed or bool({-signal.SIGABRT, -signal.SIGSEGV} & set(self.codes))

    def numbers(self, word: str) -> list[float]:
        """The last number of every line of rank 0 that starts with ``word``."""
        lines = [n for n in self.output[0].splitlines() if n.startswith(word)]
        return [float(line.split()[-1]) for line in lines]


class Launcher:
    """A process that has torch imported and forks the ranks of one run after the other."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.count = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo"}
        # Kernels that most machines have: those for AMX sum up bf16 in another order when the same
        # numbers lie elsewhere in memory, as FSDP1's and FSDP2's do.
        quiet["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"
        return subprocess.Popen(
            [sys.executable, "-m", "tests.training.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | quiet,
        )

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def script(self, script: Path, *args: str, ranks: int = 2, **options: Any) -> Run:
        """Run a script on ``ranks`` processes, from the directory it stands in."""
        return self._run({"script": str(script)}, args, ranks, script.parent, **options)

    def function(self, module: str, name: str, *args: str, ranks: int = 2, **options: Any) -> Run:
        """Call a function of a module on ``ranks`` processes."""
        what = {"module": module, "function": name}
        return self._run(what, args, ranks, REPOSITORY, **options)

    def _run(
        self,
        what: dict[str, str],
        args: Sequence[str],
        ranks: int,
        directory: Path,
        *,
        fails: bool = False,
        **options: Any,
    ) -> Run:
        run = self._once(what, args, ranks, directory, **options)
        if run.was_unlucky and not fails:
            run = self._once(what, args, ranks, directory, **options)
        if not fails and any(run.codes):
            raise Failed(_explain(what, args, run))
        return run

    def _once(
        self,
        what: dict[str, str],
        args: Sequence[str],
        ranks: int,
        directory: Path,
        *,
        fsdp1: str = "",
        timeout: float = 60,
        env: dict[str, str] | None = None,
    ) -> Run:
        self.count += 1
        out = self.scratch / str(self.count)
        out.mkdir(parents=True)
        job = {
            **what,
            "args": [str(a) for a in args],
            "ranks": ranks,
            "directory": str(directory),
            "out": str(out),
            "timeout": timeout,
            "grace": 5,
            "env": env or {},
            "fsdp1": fsdp1,
        }
        answer = self._asked(job)
        output = tuple((out / f"stdout.{rank}").read_text() for rank in range(ranks))
        errors = tuple((out / f"stderr.{rank}").read_text() for rank in range(ranks))
        run = Run(tuple(answer["codes"]), answer["timed_out"], output, errors)
        used = [file for rank in range(ranks) if (file := out / f"uses.{rank}").exists()]
        events = [map(json.loads, file.read_text().splitlines()) for file in used]
        run = replace(run, observed=read(events))
        seen = [out / f"models.{rank}" for rank in range(ranks)]
        if not all(file.exists() for file in seen):
            return run
        return replace(run, models=tuple(torch.load(file) for file in seen))

    def _asked(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        except BaseException:  # its time is up, say: the next test must not read this answer
            self.process.kill()
            self.process.wait()
            self.process = self._start()
            raise
        return answer


def _explain(what: dict[str, str], args: Sequence[str], run: Run) -> str:
    title = "ran out of time" if run.timed_out else f"ended with {run.codes}"
    parts = [f"{' '.join(what.values())} {' '.join(map(str, args))} {title}"]
    for rank, (output, errors) in enumerate(zip(run.output, run.errors, strict=True)):
        parts += [f"--- rank {rank} ---", output[-2000:], errors[-6000:]]
    return "\n".join(parts)


# -- before and after -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """The two versions of a program, written out."""

    before: Path
    after: Path

    def text(self, name: str = "train.py") -> str:
        return (self.after.parent / name).read_text()


def pair(program: str, scratch: Path, target: str = "") -> Pair:
    """Both versions of a program of the fixtures, with every file of its directory."""
    directory = FIXTURES / program
    found = directory.rglob("*.py")
    files = {p.relative_to(directory).as_posix(): p.read_bytes() for p in found}
    return written(files, scratch / program, target=target)


def written(
    files: dict[str, bytes],
    scratch: Path,
    entry: str = "train.py",
    *,
    target: str = "",
    published: bool = True,
) -> Pair:
    """Both versions of a program given as text, the later one for a release of torch.

    Args:
        published: others may install it.
    """
    options = Options(target=Version(target)) if target else Options()
    result, after = migrate(files, replace(options, published=published))
    assert not result.problems, result.problems
    left = [d for d in result.decisions if d.outcome.name == "LEFT"]
    assert not left, f"{worst(result)}: {[(d.code, d.message) for d in left]}"
    for version, texts in (("before", files), ("after", after)):
        for name, text in texts.items():
            path = scratch / version / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Pair(scratch / "before" / entry, scratch / "after" / entry)


def accounted(run: Run, program: str) -> Accounted:
    """Where a run of a program of the fixtures used FSDP1, beside the sites of the rewriter. What
    :mod:`.observe` asks the models for at their end is left out."""
    uses = tuple(use for use in run.observed.uses if use.through != "tests")
    return account(replace(run.observed, uses=uses), _study(FIXTURES / program))


_study = cache(study)


def compare(before: Run, after: Run, *, tolerance: float = 1e-6, atol: float = 1e-9) -> int:
    """Compare everything the ranks printed: words must be equal, numbers close.

    Returns:
        How many numbers were compared.
    """
    count = 0
    for rank, (old, new) in enumerate(zip(before.output, after.output, strict=True)):
        old_lines, new_lines = old.splitlines(), new.splitlines()
        assert len(old_lines) == len(new_lines), f"rank {rank}:\n{old}\n--- after ---\n{new}"
        for first, second in zip(old_lines, new_lines, strict=True):
            same_words = NUMBER.sub("#", first) == NUMBER.sub("#", second)
            assert same_words, f"rank {rank}: {first!r} became {second!r}"
            pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
            for a, b in ((float(x), float(y)) for x, y in pairs):
                count += 1
                same = math.isclose(a, b, rel_tol=tolerance, abs_tol=atol)
                assert same or (math.isnan(a) and math.isnan(b)), (
                    f"rank {rank}: {first!r} became {second!r}"
                )
    return count


def compare_models(
    before: Run, after: Run, *, tolerance: float, atol: float = 1e-7, ending: tuple[str, ...] = ()
) -> int:
    """Compare the models that both runs ended with: their units, parameters and buffers.

    Of tensors with one of ``ending`` only shape and dtype: the bias of attention's keys changes
    nothing, its gradient is rounding alone, and Adam takes whole steps by its sign.

    Returns:
        How many tensors were compared.
    """
    count = 0
    assert before.models
    for rank, (old, new) in enumerate(zip(before.models, after.models, strict=True)):
        assert len(old) == len(new) > 0
        for first, second in zip(old, new, strict=True):
            assert first["units"] == second["units"]
            for kind in ("parameters", "buffers"):
                assert list(first[kind]) == list(second[kind])
                for name, a in first[kind].items():
                    b = second[kind][name]
                    assert (a.shape, a.dtype) == (b.shape, b.dtype), name
                    if name.endswith(ending):
                        continue
                    assert torch.allclose(a, b, rtol=tolerance, atol=atol, equal_nan=True), (
                        f"rank {rank}: {name} differs by {(a - b).abs().max()}"
                    )
                    count += 1
    return count
