"""Settings of axolotl, what becomes of them here, and what its release has them run as."""

from __future__ import annotations

from dataclasses import dataclass

from tests.configurations.writing import unmarked, write_one

HEAD = """\
base_model: x
datasets:
  - path: x
    type: alpaca
micro_batch_size: 1
num_epochs: 1
"""


@dataclass(frozen=True)
class Row:
    """Lines of a file, our outcome, and what axolotl has it run as before and after; of one that is
    left, after ``hand`` has been written."""

    text: str
    outcome: str
    runs: str
    after: str
    hand: str = ""

    @property
    def before(self) -> str:
        return HEAD + self.text

    def ours(self) -> tuple[str, str]:
        """Our outcome, empty for nothing to do, and what is run then."""
        written = write_one(self.before, "axolotl.yaml", None)
        outcome = written.worst()
        after = HEAD + self.hand if self.hand else unmarked(written.text)
        return outcome.value if outcome is not None else "", after

    @property
    def title(self) -> str:
        return _in_line(self.text)


def _in_line(text: str) -> str:
    """Lines as one, what is below ``fsdp_config`` in braces."""
    inner = ", ".join(line.strip() for line in text.splitlines() if line.startswith(" "))
    outer = [line for line in text.splitlines() if not line.startswith(" ")]
    return ", ".join(f"{line} {{{inner}}}" if line.endswith(":") else line for line in outer)


def _config(*lines: str, top: str = "") -> str:
    return "\n".join([*top.splitlines(), "fsdp_config:", *(f"  {line}" for line in lines), ""])


ROWS: list[Row] = [
    Row(
        _config("fsdp_sharding_strategy: FULL_SHARD"),
        "rewritten",
        "1 FULL_SHARD FULL sync",
        "2 reshard FULL",
    ),
    Row(_config("reshard_after_forward: true"), "rewritten", "stops: 'TRUE'", "2 reshard FULL"),
    Row(
        _config("fsdp_sharding_strategy: SHARD_GRAD_OP"),
        "review",
        "1 FULL_SHARD FULL sync",
        "2 keep FULL",
    ),
    Row(
        _config("fsdp_sharding_strategy: HYBRID_SHARD"),
        "left",
        "1 FULL_SHARD FULL sync",
        "2 reshard FULL",
        _config("reshard_after_forward: true", top="fsdp_version: 2"),
    ),
    Row(
        _config("fsdp_sharding_strategy: NO_SHARD"),
        "left",
        "1 FULL_SHARD FULL sync",
        "no FSDP",
        "ddp: true\n",
    ),
    Row(
        "fsdp: [full_shard, auto_wrap]\n",
        "rewritten",
        "stops: 'NoneType' object has no attribute 'activation_checkpointing'",
        "2 reshard FULL",
    ),
    Row(
        _config("fsdp_offload_params: true", top="fsdp: [full_shard, auto_wrap]"),
        "rewritten",
        "1 FULL_SHARD FULL sync offload",
        "2 reshard FULL offload",
    ),
    Row(
        _config("fsdp_state_dict_type: SHARDED_STATE_DICT", "fsdp_offload_params: true"),
        "rewritten",
        "1 FULL_SHARD SHARDED sync offload",
        "2 reshard SHARDED offload",
    ),
    Row(
        _config("fsdp_state_dict_type: LOCAL_STATE_DICT"),
        "left",
        "1 FULL_SHARD LOCAL sync",
        "2 reshard FULL",
        _config("reshard_after_forward: true", top="fsdp_version: 2"),
    ),
    Row(
        _config("fsdp_cpu_ram_efficient_loading: true", "fsdp_sync_module_states: true"),
        "rewritten",
        "1 FULL_SHARD FULL loading sync",
        "2 reshard FULL loading",
    ),
    Row(
        _config("fsdp_sync_module_states: true"),
        "review",
        "1 FULL_SHARD FULL sync",
        "2 reshard FULL",
    ),
    Row(
        _config("fsdp_cpu_ram_efficient_loading: true", top="adapter: qlora\nload_in_4bit: true"),
        "review",
        "1 FULL_SHARD FULL loading sync",
        "2 reshard FULL",
    ),
    Row(
        _config("version: 1", "reshard_after_forward: true"),
        "rewritten",
        "stops: 'TRUE'",
        "2 reshard FULL",
    ),
    Row(
        _config("fsdp_auto_wrap_policy: SIZE_BASED_WRAP", "fsdp_min_num_params: 1000"),
        "left",
        "1 FULL_SHARD FULL sync",
        "2 reshard FULL",
        _config(
            "reshard_after_forward: true",
            "auto_wrap_policy: SIZE_BASED_WRAP",
            "min_num_params: 1000",
            top="fsdp_version: 2",
        ),
    ),
    Row(
        _config("fsdp_offload_params: true", top="fsdp_final_state_dict_type: FULL_STATE_DICT"),
        "rewritten",
        "1 FULL_SHARD FULL sync offload",
        "2 reshard FULL offload",
    ),
    Row(
        _config(
            "fsdp_backward_prefetch: BACKWARD_PRE",
            "fsdp_use_orig_params: true",
            "fsdp_forward_prefetch: true",
            "fsdp_limit_all_gathers: true",
        ),
        "rewritten",
        "1 FULL_SHARD FULL sync",
        "2 reshard FULL",
    ),
    Row(
        _config("reshard_after_forward: false", top="fsdp_version: 2"),
        "",
        "2 keep FULL",
        "2 keep FULL",
    ),
    Row(
        _config("fsdp_sharding_strategy: SHARD_GRAD_OP", top="fsdp_version: 2"),
        "review",
        "2 reshard FULL",
        "2 reshard FULL",
    ),
    Row(
        _config("reshard_after_forward: true", top="optimizer: adamw_bnb_8bit"),
        "left",
        "stops: 'TRUE'",
        "stops: FSDP2 not compatible with adamw_bnb_8bit, use `adamw_torch_8bit` instead",
        _config("reshard_after_forward: true", top="fsdp_version: 2\noptimizer: adamw_bnb_8bit"),
    ),
    Row(
        _config("reshard_after_forward: true", top="rl: dpo\nload_in_8bit: true\nadapter: lora"),
        "left",
        "stops: 'TRUE'",
        "stops: FSDP2 does not support load_in_8bit or load_in_4bit with dpo",
        _config(
            "reshard_after_forward: true",
            top="fsdp_version: 2\nrl: dpo\nload_in_8bit: true\nadapter: lora",
        ),
    ),
]


def document(rows: list[Row]) -> str:
    head = "| file | ours | runs as | and then as |"
    lines = [head, "|---|---|---|---|"]
    for row in rows:
        hand = _in_line(row.hand)
        cells = (
            f"`{row.title}`" + (f"; then `{hand}` by hand" if hand else ""),
            row.outcome or "nothing to do",
            row.runs,
            row.after,
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)
