"""Settings of Lightning's FSDPStrategy, and what becomes of each, as data.

``docs/configurations.md`` is generated from it (``python -m tests.tools.documents
configurations``), and ``tests/configurations/test_lightning_runs.py`` trains each row with
Lightning: as it is, and as we write it, or as somebody would by hand where we leave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

STRATEGY = "FSDPStrategy(auto_wrap_policy={Block})"
SAME, OTHER = "the same losses", "other losses"
NEW = "data_parallel_size=2, tensor_parallel_size=1, save_distributed_checkpoint={folder}"
HOOK = """\
    def configure_model(self):
        if isinstance(self, FSDPModule):
            return
        mesh = self.device_mesh["data_parallel"]
        for module in self.blocks:
            fully_shard(module, mesh=mesh{options})
        {whole}
        for step in ("training_step", "validation_step"):
            register_fsdp_forward_method(self, step)

    def configure_optimizers"""
IMPORTS = """\
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
"""
OLD_IMPORT = "from lightning.pytorch.strategies import FSDPStrategy\n"


def by_hand(
    sizes: str = NEW,
    options: str = "",
    whole: str = "fully_shard(self, mesh=mesh)",
    folder: bool = False,
) -> dict[str, str]:
    """The parts of the Trainer's program that somebody would write, by the parts it has."""
    strategy = f"ModelParallelStrategy({sizes.format(folder=folder)})"
    hook = HOOK.replace("{options}", options).replace("{whole}", whole)
    return {STRATEGY: strategy, "    def configure_optimizers": hook, OLD_IMPORT: IMPORTS}


@dataclass(frozen=True, kw_only=True)
class Row:
    """``strategy`` and ``trainer`` are the arguments that a program has; ``runs`` is what it does
    as it is, ``after`` what it does as we write it, or with ``hand`` in place of its parts."""

    program: str = "trainer"
    strategy: str = STRATEGY
    arguments: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    outcome: str
    runs: str = "trains"
    hand: Mapping[str, str] = field(default_factory=dict)
    after: str = SAME

    @property
    def title(self) -> str:
        shown = [self.strategy if self.strategy != STRATEGY else "", self.arguments, self.note]
        return ", ".join(each for each in shown if each) or STRATEGY

    @property
    def replaced(self) -> dict[str, str]:
        """What takes the place of which parts of the program's text."""
        given = dict(self.parts)
        if self.strategy != STRATEGY:
            given[STRATEGY] = self.strategy
        if self.arguments:
            given["devices=2"] = f"devices=2, {self.arguments}"
        return given


TORCH = "from torch import nn\n"
BUFFER = {
    "        self.head = nn.Linear(16, 1)\n": "        self.head = nn.Linear(16, 1)\n"
    '        self.register_buffer("scale", torch.full((1,), 1.2345678))\n',
    "self.blocks(x)": "self.blocks(x * self.scale)",
}


def _named(strategy: str, imports: str) -> Row:
    parts = {TORCH: f"{TORCH}{imports}"}
    return Row(strategy=strategy, parts=parts, outcome="rewritten")


fabric = partial(Row, program="fabric")
SEPARATE = """\
    model = fabric.setup_module(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer = fabric.setup_optimizers(optimizer)
"""
TOGETHER = """\
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
"""
FABRIC_FUNCTION = """\
def parallelize(model, device_mesh):
    return fully_shard(model, mesh=device_mesh["data_parallel"])


def main"""
FABRIC_BY_HAND = {
    STRATEGY: "ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=1)",
    "from lightning.fabric.strategies import FSDPStrategy\n": "from lightning.fabric.strategies "
    "import ModelParallelStrategy\nfrom torch.distributed.fsdp import fully_shard\n",
    "def main": FABRIC_FUNCTION,
}

ROWS = [
    Row(outcome="rewritten"),
    Row(strategy='"fsdp"', outcome="rewritten"),
    Row(strategy=f'{STRATEGY[:-1]}, sharding_strategy="SHARD_GRAD_OP")', outcome="rewritten"),
    _named(
        f"{STRATEGY[:-1]}, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        "from torch.distributed.fsdp import ShardingStrategy\n",
    ),
    _named(
        "FSDPStrategy(auto_wrap_policy=ModuleWrapPolicy({Block}))",
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n",
    ),
    _named(
        "FSDPStrategy(auto_wrap_policy=partial(transformer_auto_wrap_policy, "
        "transformer_layer_cls={Block}))",
        "from functools import partial\n"
        "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n",
    ),
    Row(strategy=f"{STRATEGY[:-1]}, limit_all_gathers=True)", outcome="rewritten"),
    Row(
        strategy=f"{STRATEGY[:-1]}, activation_checkpointing_policy={{Block}})", outcome="rewritten"
    ),
    Row(strategy="FSDPStrategy(activation_checkpointing=[Block])", outcome="rewritten"),
    Row(
        strategy=f'{STRATEGY[:-1]}, sharding_strategy="HYBRID_SHARD", device_mesh=(1, 2))',
        outcome="left",
        hand=by_hand(sizes="data_parallel_size=2, tensor_parallel_size=1"),
        note="the hook shards over all ranks",
    ),
    Row(
        strategy=f'{STRATEGY[:-1]}, sharding_strategy="NO_SHARD")',
        outcome="left",
        hand={STRATEGY: '"ddp"', OLD_IMPORT: ""},
        note='strategy="ddp"',
    ),
    Row(
        strategy=f'{STRATEGY[:-1]}, state_dict_type="sharded")',
        outcome="left",
        hand=by_hand(folder=True),
        note="its folders are not loaded, see below",
    ),
    Row(arguments="accumulate_grad_batches=2", outcome="rewritten"),
    Row(arguments='precision="bf16-true"', outcome="rewritten"),
    Row(arguments='precision="bf16-mixed"', outcome="review"),
    Row(
        arguments='precision="bf16-mixed"',
        parts=BUFFER,
        note="a module with a buffer",
        outcome="review",
        after=OTHER,
    ),
    Row(
        arguments='precision="16-mixed"',
        outcome="left",
        hand=by_hand(),
        after="ValueError: The `ModelParallelStrategy` does not support `Fabric(..., "
        "precision='16-mixed')`. Choose a different precision among: 32-true, bf16-mixed, "
        "bf16-true, 16-true.",
    ),
    Row(
        arguments="gradient_clip_val=0.5",
        outcome="rewritten",
        runs="MisconfigurationException: `gradient_clip_algorithm='norm'` is currently not "
        "supported for `FSDPPrecision`",
        after="trains",
    ),
    Row(
        arguments="callbacks=[L.pytorch.callbacks.ModelCheckpoint(), L.pytorch.callbacks.Timer()]",
        outcome="rewritten",
    ),
    Row(arguments="callbacks=[L.Callback()]", outcome="left", hand=by_hand()),
    Row(
        outcome="rewritten",
        note="by hand, without sizes",
        hand=by_hand(sizes=""),
        after=OTHER,
    ),
    Row(
        outcome="rewritten",
        note="by hand, the layers alone",
        hand=by_hand(whole="pass"),
        after=OTHER,
    ),
    fabric(note="under Fabric", outcome="rewritten"),
    fabric(strategy='"fsdp"', note="under Fabric", outcome="rewritten"),
    fabric(
        strategy=f'{STRATEGY[:-1]}, sharding_strategy="SHARD_GRAD_OP")',
        note="under Fabric",
        outcome="rewritten",
    ),
    fabric(
        strategy=f"{STRATEGY[:-1]}, activation_checkpointing_policy={{Block}})",
        note="under Fabric",
        outcome="rewritten",
    ),
    fabric(arguments='precision="bf16-mixed"', note="under Fabric", outcome="review"),
    fabric(
        parts={SEPARATE: TOGETHER},
        note="under Fabric, `setup(model, optimizer)`",
        outcome="rewritten",
    ),
    fabric(
        parts={SEPARATE: TOGETHER},
        note="under Fabric, `setup(model, optimizer)` kept by hand",
        outcome="rewritten",
        hand={**FABRIC_BY_HAND, SEPARATE: TOGETHER},
        after=OTHER,
    ),
]


def document(rows: list[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| the program has | ours | runs as | and then as |", "|---|---|---|---|"]
    for row in rows:
        shown = [row.strategy if row.strategy != STRATEGY or not row.arguments else ""]
        code = ", ".join(f"`{each}`" for each in (*shown, row.arguments) if each)
        title = f"{code}; {row.note}" if row.note else code
        lines.append(f"| {title} | {row.outcome} | {row.runs} | {row.after} |")
    return "\n".join(lines)
