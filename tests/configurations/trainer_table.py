"""Settings of transformers' ``fsdp`` and ``fsdp_config``, and what becomes of each, as data.

``docs/configurations.md`` is generated from it (``python -m tests.tools.documents
configurations``), and ``tests/configurations/test_trainer_table.py`` trains each row with
transformers' Trainer: as it is, and as we write it in each spelling.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("trainer") / "spelled.py"
PARSED = "(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()"
COMMON = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "max_steps": 3,
    "learning_rate": 0.01,
    "save_strategy": "steps",
    "save_steps": 3,
    "logging_steps": 1,
    "report_to": "none",
    "seed": 7,
}
NAMED = "fsdp.json"
SAME, OTHER = "the same losses", "other losses"
CALL, FILE, LINE = SPELLINGS = ("dictionary", "JSON file", "command line")
LAYERS = {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
ONE, LOADING = {"version": 1}, {"cpu_ram_efficient_loading": True}

OLD, NEW, KEPT = "1 FULL_SHARD 3 units FULL", "2 reshard 6 units FULL", "2 keep 6 units FULL"


@dataclass(frozen=True, kw_only=True)
class Row:
    """``fsdp`` and ``fsdp_config`` of a program, and other arguments.

    ``runs`` is what it trains as: version, strategy (``reshard`` or ``keep`` in version 2), units,
    kind of checkpoint, or the error. ``after`` is what it trains as where we write it: in the
    dictionary of the call, in the file that the call names, and on the command line.
    """

    fsdp: Any
    config: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    spellings: tuple[str, ...] = SPELLINGS
    outcome: str
    runs: str = ""
    after: str = ""
    losses: str = SAME

    @property
    def title(self) -> str:
        others = [f"{name}={value!r}" for name, value in self.arguments.items()]
        shown = {k: v for k, v in self.config.items() if k not in LAYERS}
        return ", ".join([f"fsdp={self.fsdp!r}", json.dumps(shown), *others])

    def files(self, spelling: str) -> dict[str, str]:
        """The project that has these settings in a spelling."""
        source = PROGRAM.read_text(encoding="utf-8")
        assert source.count(PARSED) == 1
        config = json.dumps(dict(self.config), indent=2)
        given = {**COMMON, **self.arguments, "fsdp": self.fsdp}
        if spelling == LINE:
            words = [w for name, value in given.items() for w in _words(name, value)]
            line = shlex.join([*words, "--fsdp_config", json.dumps(dict(self.config))])
            return {"train.py": source, "run.sh": f"torchrun --nproc_per_node 2 train.py {line}\n"}
        written = [f"{name}={value!r}" for name, value in given.items()]
        written.append(f"fsdp_config={dict(self.config) if spelling == CALL else NAMED!r}")
        call = ", ".join(written)
        found = {"train.py": source.replace(PARSED, f"arguments = TrainingArguments({call})")}
        return found if spelling == CALL else {**found, NAMED: f"{config}\n"}


def _words(name: str, value: Any) -> list[str]:
    """A flag of the command line, which is on without a value."""
    return [f"--{name}"] if value is True else [f"--{name}", str(value)]


def _row(
    outcome: str, runs: str = OLD, after: str = NEW, /, fsdp: Any = "full_shard", **more: Any
) -> Row:
    config = {**LAYERS, **more.pop("config", {})}
    then = "" if outcome in {"", "left"} else after
    return Row(fsdp=fsdp, config=config, outcome=outcome, runs=runs, after=then, **more)


BOTH = {**ONE, **LOADING}
ROWS = [
    _row("rewritten", OLD, NEW, "full_shard auto_wrap", config=BOTH),
    _row("rewritten", OLD, KEPT, "shard_grad_op auto_wrap", config=BOTH),
    _row(
        "rewritten",
        "1 FULL_SHARD offload 3 units FULL",
        "2 reshard offload 6 units FULL",
        "full_shard auto_wrap offload",
        config=BOTH,
    ),
    _row("rewritten", OLD, NEW, ["full_shard", "auto_wrap"], config=BOTH, spellings=(CALL, FILE)),
    _row("rewritten", OLD, NEW, True, config=BOTH),
    _row("rewritten", config={"fsdp_version": 1, "fsdp_cpu_ram_efficient_loading": True}),
    _row("rewritten", config={"version": "1", **LOADING}),
    _row("left", config={**BOTH, "reshard_after_forward": "shard_grad_op"}),
    _row(
        "rewritten",
        "1 FULL_SHARD 3 units SHARDED",
        "2 reshard 6 units SHARDED",
        config={**BOTH, "state_dict_type": "SHARDED_STATE_DICT"},
    ),
    _row(
        "left",
        "1 FULL_SHARD 3 units LOCAL",
        config={**BOTH, "state_dict_type": "LOCAL_STATE_DICT"},
    ),
    _row(
        "rewritten",
        OLD,
        "2 reshard 8 units FULL",
        config={**BOTH, "activation_checkpointing": True},
    ),
    _row(
        "rewritten",
        config={**BOTH, "backward_prefetch": "backward_pre", "limit_all_gathers": True},
    ),
    _row("rewritten", config={**BOTH, "forward_prefetch": True, "use_orig_params": True}),
    _row("review", config=ONE),
    _row("rewritten", config={**ONE, "sync_module_states": False}),
    _row("review", config=BOTH, arguments={"bf16": True}, losses=OTHER),
    _row("review", config={**BOTH, "min_num_params": 2000}),
    _row("left", OLD, "", "hybrid_shard auto_wrap", config=BOTH),
    _row("left", OLD, "", "no_shard", config=BOTH),
    _row("rewritten", NEW, NEW, config=LOADING),
    _row("rewritten", KEPT, KEPT, "shard_grad_op", config=LOADING),
    _row("rewritten", NEW, NEW, True, config={"version": 2}),
    _row("", KEPT, config={"version": 2, "reshard_after_forward": False}),
]


def document(rows: list[Row]) -> str:
    """The settings, ours in each spelling, and what each is trained as."""
    head = "| settings | ours | trained as | and then as |"
    lines = [head, "|---|---|---|---|"]
    for row in rows:
        ours = row.outcome or "nothing to do"
        only = "" if LINE in row.spellings else "; not on the command line"
        then = f"{row.after}; {row.losses}" if row.after else ""
        cells = (f"`{row.title}`{only}", ours, row.runs, then)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)
