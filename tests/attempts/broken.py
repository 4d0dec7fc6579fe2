"""Programs of ``fixtures/`` with one piece of what is written for them broken on purpose.

``python -m tests.attempts.broken`` has ``migrate`` look for each and prints what came of it; with
words after it, only those whose names hold one of them.
"""

from __future__ import annotations

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

from fsdp_migrate.cli import parser
from fsdp_migrate.rewriting import apply

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


@dataclass(frozen=True)
class Found:
    """What ``migrate`` made of it."""

    broken: Broken
    code: int
    said: dict[str, Any]

    @property
    def names_the_site(self) -> bool:
        """Whether the evidence of the first failure names a site of the rules, or its line."""
        attempts = self.said["attempts"]
        if len(attempts) < 2:
            return False
        why = attempts[1]["why"]
        return any(code in why for code in self.broken.codes) or "of the new code" in why

    @property
    def ends_well(self) -> bool:
        """Whether it ended with the same training, or with the model of the site left."""
        return self.code in (0, 1) and not self.said["stopped"]

    @property
    def line(self) -> str:
        trained = [attempt for attempt in self.said["attempts"] if attempt["reports"]]
        end = "left" if not self.said["same_training"] or self.said["left"] else "same training"
        named = "named" if self.names_the_site else "NOT NAMED"
        return f"{named}, {end}, {len(trained)} attempts: {self.broken}"


CLIPS, CASTS, UNITS = ("FSDP401",), ("FSDP202",), ("FSDP101", "FSDP102", "FSDP103")
SUMMONED = ("FSDP306", "FSDP407", "FSDP408")

BROKEN = (
    Broken(
        "by_hand/ddp_or_fsdp", "model.parameters(), max_norm)", "model.parameters(), 1e-3)", CLIPS
    ),
    Broken("by_hand/ddp_or_fsdp", "return fully_shard(model, mesh=mesh)", "return model", UNITS),
    Broken("by_hand/diffusion_ema", ", args.grad_clip)", ", args.grad_clip / 50)", CLIPS),
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


def search(broken: Broken, folder: Path) -> Found:
    """Let ``migrate`` look for what is broken, in a copy of the program below ``folder``."""
    project = folder / "project"
    shutil.copytree(FIXTURES / broken.program / "before", project)
    (project / "pyproject.toml").touch()
    answer = folder / "answer.json"
    arguments = ["--dry-run", "-q", "-o", str(answer), *broken.options]
    with _written_wrongly(broken), contextlib.chdir(project), mock.patch.dict(os.environ):
        os.environ["FSDP_MIGRATE_STATE"] = str(folder / "state")
        code = parser.run(["migrate", "train.py", *arguments, "--", *broken.args])
    return Found(broken, code, json.loads(answer.read_text(encoding="utf-8")))


@contextlib.contextmanager
def _written_wrongly(broken: Broken) -> Iterator[None]:
    right = apply.apply_edits
    seen = False

    def wrong(*arguments: Any, **options: Any) -> bytes:
        nonlocal seen
        text = right(*arguments, **options)
        seen |= broken.old.encode() in text
        return text.replace(broken.old.encode(), broken.new.encode())

    with mock.patch.object(apply, "apply_edits", wrong):
        yield
    assert seen, f"nothing like {broken.old!r} is written for {broken.program}"


def main(words: Sequence[str]) -> int:
    chosen = [b for b in BROKEN if not words or any(word in str(b) for word in words)]
    found = []
    for broken in chosen:
        with tempfile.TemporaryDirectory() as folder:
            found.append(search(broken, Path(folder)))
        print(found[-1].line, flush=True)
    named = sum(each.names_the_site for each in found)
    well = sum(each.ends_well for each in found)
    print(f"{len(found)} programs: the site is named in {named}, {well} end well")
    return int(named < len(found) or well < len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
