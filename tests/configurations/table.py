"""Settings of accelerate, one by one and in every spelling, and what becomes of each, as data.

``docs/configurations.md`` is generated from it (``python -m tests.tools.documents
configurations``), and ``tests/configurations/test_table.py`` runs accelerate on each row: before,
after our migration, and after accelerate's own converter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.configurations import running

BASE: Mapping[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 2,
}
HYBRID = {"num_machines": 2, "num_processes": 16}
FULL, KEPT = "2 reshard FULL loading", "2 keep FULL loading"
SHARDED = "2 reshard SHARDED loading"
SIZES = "DP_REPLICATE=2 DP_SHARD=8"


@dataclass(frozen=True, kw_only=True)
class Row:
    """``fsdp_config`` of a file, our outcome, and what accelerate makes of ours.

    ``runs`` is as ``running.launched`` puts it: version, sharding, checkpoints, then what else is
    on. It is empty where our outcome is *left*: the file stays as it is. ``file`` are other keys of
    the file.
    """

    section: str
    settings: Mapping[str, Any]
    outcome: str
    runs: str = ""
    file: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {**BASE, **self.file, "fsdp_config": dict(self.settings)}

    @property
    def title(self) -> str:
        """The settings in a line, as YAML in braces has them."""
        written = [f"{key}: {_yaml(value)}" for key, value in self.settings.items()]
        return ", ".join([*written, *(f"{k}: {_yaml(v)}" for k, v in self.file.items())]) or "{}"


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) and not value[:1].isalpha() else str(value)


def _strategies(key: str, outcome: str, full: str, kept: str) -> list[Row]:
    """FULL_SHARD and SHARD_GRAD_OP in every spelling that accelerate takes."""
    section = f"{key}, by name and number"
    spelled = {full: ("FULL_SHARD", "full_shard", 1, "1"), kept: ("SHARD_GRAD_OP", 2, "2")}
    return [
        Row(section=section, settings={key: value}, outcome=outcome, runs=runs)
        for runs, values in spelled.items()
        for value in values
    ]


STRATEGY, RESHARD = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"


def _hybrid() -> list[Row]:
    rows = []
    for value, runs in {
        "HYBRID_SHARD": FULL,
        "4": FULL,
        "HYBRID_SHARD_ZERO2": KEPT,
        "_HYBRID_SHARD_ZERO2": KEPT,
        5: KEPT,
    }.items():
        rows.append(
            Row(
                section="HYBRID_SHARD",
                settings={STRATEGY: value},
                file=HYBRID,
                outcome="review",
                runs=f"{runs} {SIZES}",
            )
        )
    one = Row(
        section="HYBRID_SHARD", settings={STRATEGY: "HYBRID_SHARD"}, outcome="review", runs=FULL
    )
    return [*rows, one]


def _row(section: str, outcome: str, runs: str = "", /, **settings: Any) -> Row:
    file = {key: settings.pop(key) for key in list(settings) if not key.startswith("fsdp_")}
    return Row(section=section, settings=settings, outcome=outcome, runs=runs, file=file)


LOADING, SYNC = "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"

ROWS: list[Row] = [
    _row("Defaults", "rewritten", FULL),
    *_strategies(STRATEGY, "rewritten", FULL, KEPT),
    _row("NO_SHARD", "left", fsdp_sharding_strategy="NO_SHARD"),
    _row("NO_SHARD", "left", fsdp_sharding_strategy=3),
    _row("No strategy", "left", fsdp_sharding_strategy="ZERO3"),
    _row("No strategy", "left", fsdp_sharding_strategy=6),
    _row("No strategy", "left", fsdp_sharding_strategy=True),
    *_hybrid(),
    *(
        _row(
            "HYBRID_SHARD",
            "left",
            fsdp_sharding_strategy="HYBRID_SHARD",
            num_machines=2,
            num_processes=processes,
        )
        for processes in (2, 3)
    ),
    _row("Units by size", "left", fsdp_auto_wrap_policy="SIZE_BASED_WRAP"),
    *(
        _row("Version 1's alias", "rewritten", FULL, fsdp_reshard_after_forward=value)
        for value in ("FULL_SHARD", True)
    ),
    *(
        _row("Version 1's alias", "review", FULL, fsdp_reshard_after_forward=value)
        for value in ("SHARD_GRAD_OP", False, "HYBRID_SHARD", "NO_SHARD")
    ),
    _row(
        "Version 1's alias",
        "rewritten",
        KEPT,
        fsdp_sharding_strategy="SHARD_GRAD_OP",
        fsdp_reshard_after_forward=False,
    ),
    _row(
        "Version 1's alias",
        "left",
        fsdp_sharding_strategy="SHARD_GRAD_OP",
        fsdp_reshard_after_forward=True,
    ),
    *(
        _row("Checkpoints", "rewritten", "2 reshard SHARDED loading", fsdp_state_dict_type=value)
        for value in ("SHARDED_STATE_DICT", "sharded_state_dict", "3")
    ),
    _row("Checkpoints", "rewritten", FULL, fsdp_state_dict_type=1),
    *(
        _row("Checkpoints", "left", fsdp_state_dict_type=value)
        for value in ("LOCAL_STATE_DICT", "2")
    ),
    _row(
        "Rank 0's weights",
        "rewritten",
        FULL,
        fsdp_cpu_ram_efficient_loading=True,
        fsdp_sync_module_states=True,
    ),
    _row(
        "Rank 0's weights",
        "review",
        "2 reshard FULL",
        fsdp_cpu_ram_efficient_loading=False,
        fsdp_sync_module_states=True,
    ),
    _row("Rank 0's weights", "review", "2 reshard FULL", fsdp_cpu_ram_efficient_loading=False),
    _row(
        "Rank 0's weights",
        "rewritten",
        "2 reshard FULL",
        fsdp_cpu_ram_efficient_loading=False,
        fsdp_sync_module_states=False,
    ),
    _row("Rank 0's weights", "rewritten", "2 reshard FULL", fsdp_sync_module_states=False),
    _row("Rank 0's weights", "rewritten", FULL, fsdp_sync_module_states="false"),
    _row(
        "Rank 0's weights",
        "left",
        fsdp_cpu_ram_efficient_loading=True,
        fsdp_sync_module_states=False,
    ),
    *(
        _row("Without a counterpart", "rewritten", FULL, **{key: value})
        for key, value in {
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_backward_prefetch_policy": "NO_PREFETCH",
            "fsdp_forward_prefetch": True,
            "fsdp_use_orig_params": True,
            "fsdp_limit_all_gathers": True,
        }.items()
    ),
    _row("Without a counterpart", "review", FULL, fsdp_use_orig_params=False),
    *(
        _row("Kept", "rewritten", FULL, **{key: value})
        for key, value in {
            "fsdp_offload_params": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
            "fsdp_activation_checkpointing": True,
            "fsdp_ignored_modules": "head",
            "fsdp_of_tomorrow": 1,
        }.items()
    ),
    *(_row("Mixed precision", "review", FULL, mixed_precision=value) for value in ("bf16", "fp16")),
    _row("Version 2 already", "", SHARDED, fsdp_version=2),
    _row("Version 2 already", "", SHARDED, fsdp_version=2, mixed_precision="bf16"),
    _row("Version 2 already", "", SHARDED, fsdp_version=2, fsdp_reshard_after_forward=True),
    *(
        _row(
            "Version 2 already",
            "review",
            SHARDED,
            fsdp_version=2,
            fsdp_sharding_strategy=value,
        )
        for value in ("SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD")
    ),
    _row(
        "Version 2 already",
        "rewritten",
        SHARDED,
        fsdp_version=2,
        fsdp_sharding_strategy="FULL_SHARD",
    ),
    _row(
        "Version 2 already",
        "review",
        "2 keep SHARDED loading",
        fsdp_version=2,
        fsdp_sharding_strategy="FULL_SHARD",
        fsdp_reshard_after_forward=False,
    ),
    _row(
        "Version 2 already",
        "rewritten",
        SHARDED,
        fsdp_version="2",
        fsdp_reshard_after_forward="FULL_SHARD",
    ),
    _row(
        "Version 2 already",
        "rewritten",
        "2 keep SHARDED loading",
        fsdp_version=2,
        fsdp_reshard_after_forward="SHARD_GRAD_OP",
    ),
    _row("Version 2 already", "left", fsdp_version=2, fsdp_reshard_after_forward="NO_SHARD"),
    *(
        _row("Version 2 already", "rewritten", SHARDED, fsdp_version=2, **{key: value})
        for key, value in {
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_forward_prefetch": False,
            "fsdp_use_orig_params": True,
            "fsdp_sync_module_states": True,
        }.items()
    ),
    _row(
        "Version 2 already",
        "rewritten",
        "2 reshard SHARDED",
        fsdp_version=2,
        fsdp_sync_module_states=False,
    ),
    _row("Version 2 already", "left", fsdp_version=2, fsdp_state_dict_type="LOCAL_STATE_DICT"),
    _row("Unknown version", "left", fsdp_version=3),
    _row("No FSDP", "", fsdp_sharding_strategy="FULL_SHARD", distributed_type="MULTI_GPU"),
    _row("No FSDP", "", fsdp_sharding_strategy="FULL_SHARD", distributed_type="DEEPSPEED"),
]


def document(rows: list[Row]) -> str:
    """A table a section: the settings, what runs before, ours, and what runs with each result."""
    logging.disable(logging.WARNING)
    parts: list[str] = []
    head = "| `fsdp_config` | runs as | ours | which runs as | the converter's runs as |"
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            parts += ["", f"### {section}", "", head, "|---|---|---|---|---|"]
        ours = row.outcome or "nothing to do"
        after = running.launched(running.migrated(row.config))
        theirs = running.launched(running.converted(row.config))
        now = running.launched(row.config)
        cells = (f"`{row.title}`", now, ours, "" if ours == "left" else after, theirs)
        parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    logging.disable(logging.NOTSET)
    return "\n".join(parts).strip()
