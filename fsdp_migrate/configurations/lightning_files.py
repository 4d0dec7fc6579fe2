"""Lightning's strategy in files of LightningCLI and hydra."""

from __future__ import annotations

import re

from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats.tree import Mapping, Scalar
from fsdp_migrate.configurations.settings import Setting

OF_TRAINER = frozenset({
    "accelerator", "devices", "max_epochs", "max_steps", "num_nodes", "limit_val_batches",
    "accumulate_grad_batches", "log_every_n_steps", "val_check_interval", "check_val_every_n_epoch",
})  # fmt: skip
_CLASS = re.compile(
    r"(?:(?:lightning\.(?:pytorch|fabric)|pytorch_lightning|lightning_fabric)(?:\.\w+)*\.)?"
    r"FSDPStrategy"
)
_ALIASES = {"fsdp", "fsdp_cpu_offload"}


def is_of_lightning(strategy: str) -> bool:
    """Whether a text names FSDPStrategy: a word for it, or the class."""
    return strategy in _ALIASES or _CLASS.fullmatch(strategy) is not None


def is_lightnings(path: tuple[str, ...], mapping: Mapping, keys: set[str]) -> bool:
    """Whether a mapping is a Trainer's of Lightning with FSDPStrategy, or hydra's strategy."""
    if path[-1:] != ("strategy",) and _CLASS.fullmatch(_class_of(mapping)):
        return True
    if "strategy" not in keys:
        return False
    pair = mapping.get("strategy")
    value = pair.value if pair is not None else None
    if isinstance(value, Scalar):
        return value.value in _ALIASES and path[-1:] == ("trainer",) and bool(keys & OF_TRAINER)
    return bool(isinstance(value, Mapping) and _CLASS.fullmatch(_class_of(value)))


def _class_of(strategy: Mapping) -> str:
    """What LightningCLI calls ``class_path``, and hydra ``_target_``."""
    pair = strategy.get("class_path") or strategy.get("_target_")
    return str(pair.value.value) if pair is not None and isinstance(pair.value, Scalar) else ""


def take(block: Entries, mapping: Mapping) -> None:
    """The settings of such a mapping."""
    block.take(mapping, str)
    strategy = mapping.below("strategy")
    if strategy is None and _class_of(mapping):  # hydra's group of strategies
        strategy = mapping
        block.settings.clear()
    if strategy is not None:
        inner = strategy.below("init_args") or strategy
        block.take(inner, lambda key: f"strategy.{key}")
        for pair in inner.pairs:
            if isinstance(pair.value, Mapping):
                name = f"strategy.{pair.key}"
                block.settings[name] = Setting(name, None, "it is made of others")
        block.settings["strategy"] = Setting("strategy", _class_of(strategy))
        block.spans["strategy"] = block.head
