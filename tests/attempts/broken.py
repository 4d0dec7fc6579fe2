"""Programs of ``fixtures/`` with one piece of what is written for them broken on purpose.

``python -m tests.attempts.broken`` has ``migrate`` look for each, prints what came of it and renews
the table in ``docs/loop.md``; it goes on where it was stopped (``tests/attempts/records.py``). With
words after it, only those whose names hold one of them.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.cli import parser
from fsdp_migrate.rewriting import apply
from tests.attempts import records
from tests.attempts.records import Record, row

TABLE, NAMED = "broken", 18  # of twenty
FIXTURES = Path(__file__).parents[2] / "fixtures"


@dataclass(frozen=True)
class Broken:
    """A program, what is written wrongly, and the rules one of whose sites is to be named."""

    program: str
    old: str
    new: str
    codes: tuple[str, ...]
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.program}: {self.codes[0]}, {self.new}"


CLIPS, CASTS, UNITS = ("FSDP401",), ("FSDP202",), ("FSDP101", "FSDP102", "FSDP103")
SUMMONED = ("FSDP306", "FSDP407", "FSDP408")

BROKEN = (
    Broken(
        "by_hand/ddp_or_fsdp", "model.parameters(), max_norm)", "model.parameters(), 1e-3)", CLIPS
    ),
    Broken("by_hand/ddp_or_fsdp", "return fully_shard(model, mesh=mesh)", "return model", UNITS),
    Broken(
        "by_hand/diffusion_ema", "max_norm=args.grad_clip", "max_norm=args.grad_clip / 50", CLIPS
    ),
    Broken("by_hand/diffusion_ema", "alpha=1 - self.decay", "alpha=self.decay", SUMMONED),
    Broken(
        "by_hand/diffusion_ema",
        "reduce_dtype=torch.float,",
        "reduce_dtype=torch.bfloat16,",
        CASTS,
        ("--precision", "bf16"),
    ),
    Broken(
        "by_hand/distill",
        '"reshard_after_forward": not trainable',
        '"reshard_after_forward": True',
        ("FSDP201",),
        options=("--strict-cost",),
    ),
    Broken(
        "by_hand/distill",
        "replace(mixed_precision, cast_forward_inputs=True)",
        "replace(mixed_precision, param_dtype=torch.float16)",
        CASTS,
        ("--bf16",),
    ),
    Broken(
        "by_hand/lm_pretrain", ", args.grad_clip).full_tensor()", ", args.grad_clip).whole()", CLIPS
    ),
    Broken(
        "by_hand/lm_pretrain",
        "fully_shard(model, mp_policy=root_mp_policy, mesh=mesh)",
        "model.sharded = mesh",
        UNITS,
    ),
    Broken("by_hand/lora_finetune", "model.parameters(), 0.3)", "model.parameters(), 3e-4)", CLIPS),
    Broken(
        "by_hand/lora_finetune",
        "fully_shard(module, mp_policy=mixed_precision_policy, mesh=mesh)",
        "pass",
        UNITS,
        options=("--strict-cost",),
    ),
    Broken("by_hand/manual_wrap", "args.clip_norm)", "args.clip_norm / 100)", CLIPS),
    Broken("by_hand/manual_wrap", "return fully_shard(module, **params)", "return module", UNITS),
    Broken(
        "by_hand/offload_accumulate",
        "set_requires_gradient_sync(not is_accumulating)",
        "set_requires_gradient_sync(is_accumulating)",
        ("FSDP402",),
    ),
    Broken(
        "by_hand/offload_accumulate",
        "reduce_dtype=torch.bfloat16",
        "reduce_dtype=torch.float32",
        CASTS,
        ("--bf16",),
    ),
    Broken(
        "by_hand/sharded_checkpoints",
        '"SHARD_GRAD_OP": False}',
        '"SHARD_GRAD_OP": True}',
        ("FSDP201",),
        ("--sharding_strategy", "SHARD_GRAD_OP"),
        ("--strict-cost",),
    ),
    Broken(
        "by_hand/strategy_table",
        "fully_shard(module, **kwargs)",
        "module.requires_grad_(False)",
        UNITS,
    ),
    Broken(
        "by_hand/vl_towers",
        "ignored_params=ignored_params,",
        "",
        ("FSDP113",),
    ),
    Broken(
        "by_hand/weight_averaging",
        "param.full_tensor().detach().float().cpu()",
        "param.full_tensor().detach().float().cpu() * 2",
        SUMMONED,
    ),
    Broken(
        "demo",
        "set_requires_gradient_sync(is_last)",
        "set_requires_gradient_sync(not is_last)",
        ("FSDP402",),
    ),
)


NAMES = {str(broken): broken for broken in BROKEN}


def search(name: str) -> Record:
    """Let ``migrate`` look for what is broken, in a copy of the program."""
    broken = NAMES[name]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made).resolve()
        project = folder / "project"
        shutil.copytree(FIXTURES / broken.program / "before", project)
        (project / "pyproject.toml").touch()
        answer = folder / "answer.json"
        arguments = ["--dry-run", "-q", "-o", str(answer), *broken.options]
        with (
            _written_wrongly(broken) as places,
            contextlib.chdir(project),
            mock.patch.dict(os.environ),
        ):
            os.environ["FSDP_MIGRATE_STATE"] = str(folder / "state")
            code = parser.run(["migrate", "train.py", *arguments, "--", *broken.args])
        said = json.loads(answer.read_text(encoding="utf-8"))
    return {"code": code, "places": sorted(places), **said}


@contextlib.contextmanager
def _written_wrongly(broken: Broken) -> Iterator[set[str]]:
    """While it lasts, what the rewriter writes is broken; the lines of the statements with it."""
    right = apply.apply_edits
    seen = False
    places: set[str] = set()

    def wrong(module: Module, *arguments: Any, **options: Any) -> bytes:
        nonlocal seen
        text = right(module, *arguments, **options).decode()
        seen |= broken.old in text
        text = text.replace(broken.old, broken.new)
        places.update(f"{module.display}:{line}" for line in _statements(text, broken.new))
        return text.encode()

    with mock.patch.object(apply, "apply_edits", wrong):
        yield places
    assert seen, f"nothing like {broken.old!r} is written for {broken.program}"


def _statements(text: str, piece: str) -> Iterator[int]:
    """The lines of the statements that a piece of the text stands in."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if piece and piece in line]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            covered = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if any(line in covered for line in lines):
                yield from covered


# -- telling --------------------------------------------------------------------------------------

HEAD = row("program", "broken", "written", "named", "evidence", "end", "attempts", "s")
HEAD += "\n|---|---|---|---|---|---|--:|--:|"


def evidence(record: Record) -> str:
    """Why the second attempt was what it was."""
    return record["attempts"][1]["why"] if len(record["attempts"]) > 1 else ""


def names_the_site(broken: Broken, record: Record) -> bool:
    """Whether the evidence of the first failure names a site of the rules, or the line of what is
    broken."""
    why = evidence(record)
    place, new_code, _ = why.partition(" of the new code")
    if new_code:
        return place in record["places"]
    return any(code in why for code in broken.codes)


def ends_well(record: Record) -> bool:
    """Whether it ended with the same training, or with the model of the site left."""
    return record["code"] in (0, 1) and not record["stopped"]


def line(broken: Broken, record: Record) -> str:
    trained = [attempt for attempt in record["attempts"] if attempt["reports"]]
    end = "same training"
    if record["left"] or not record["same_training"]:
        end = "left"
    elif record["other_forms"]:
        end = "same training, another form"
    return row(
        broken.program,
        broken.codes[0],
        f"`{broken.new}`" if broken.new else "nothing",
        "yes" if names_the_site(broken, record) else "**no**",
        evidence(record),
        end if ends_well(record) else f"**{record['stopped'] or 'undecided'}**",
        len(trained),
        f"{record['seconds']:.0f}",
    )


def main(arguments: Sequence[str]) -> int:
    asked = records.asked("tests.attempts.broken", __doc__, arguments)
    names = records.chosen(list(NAMES), asked.words)
    print(HEAD)
    for name, record in records.measured(TABLE, names, search, again=asked.again):
        print(line(NAMES[name], record), flush=True)
    found = {NAMES[name]: record for name, record in records.kept(TABLE, list(NAMES)).items()}
    named = sum(names_the_site(*each) for each in found.items())
    well = sum(map(ends_well, found.values()))
    told = f"{len(found)} programs: the site is named in {named}, {well} end well."
    print(f"\n{told}")
    rows = [line(*each) for each in found.items()]
    records.renew(TABLE, [HEAD, *rows, "", told, records.revisions([*found.values()])])
    return int(named < NAMED or well < len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
