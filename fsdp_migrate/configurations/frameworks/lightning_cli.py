"""Lightning's strategies in files of LightningCLI and hydra: said with what to write.

``ModelParallelStrategy`` needs a hook in the program, which no file can give it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_migrate.configurations.frameworks import lightning, words
from fsdp_migrate.configurations.settings import Change, Settings, Value
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences

WRAPS = "Lightning wraps the model with FSDP1 here, and ModelParallelStrategy needs a hook in code"
UNITS = "call fully_shard first for each module of the classes in auto_wrap_policy"
DTYPES = "give fully_shard an mp_policy with the dtypes of mixed_precision"
PARTS = {
    "auto_wrap_policy": UNITS,
    "mixed_precision": DTYPES,
    "activation_checkpointing_policy": "call apply_activation_checkpointing before it",
    "activation_checkpointing": "call apply_activation_checkpointing before it",
}
NEW = "ModelParallelStrategy"


def migrate(settings: Settings) -> list[Change]:
    """What becomes of a Trainer's settings with FSDPStrategy: it is left."""
    strategy = settings["strategy"]
    given = {
        name.removeprefix("strategy."): setting.value
        for name, setting in settings.items()
        if not setting.unknown
    }
    named = words.strategy(given.get("sharding_strategy", "FULL_SHARD"))
    if named is None or named == "NO_SHARD" or named.startswith("HYBRID"):
        shown = given.get("sharding_strategy")
        help = "write strategy: ddp" if named == "NO_SHARD" else "shard in the hook, over a mesh"
        return [_left(f"sharding_strategy: {shown}", help)]
    of_fabric = ".fabric." in str(strategy.value) or "lightning_fabric" in str(strategy.value)
    if (given.get("cpu_offload") or _is_object(settings, "cpu_offload")) and not of_fabric:
        return [_left("cpu_offload under the Trainer", "do without it")]
    if str(given.get("precision")) in lightning.UNSUPPORTED:
        return [_left(f"precision: {given['precision']}", "write bf16-mixed")]
    target = lightning.Target(of_fabric, _size(given))
    target.sharded = given.get("state_dict_type", "sharded" if of_fabric else "") == "sharded"
    target.options = [] if words.RESHARDING[named] else ["reshard_after_forward=False"]
    if given.get("cpu_offload") or _is_object(settings, "cpu_offload"):
        target.options = [*target.options, "offload_policy=CPUOffloadPolicy()"]
    if str(given.get("precision")) in lightning.BFLOAT16:
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
        target.options = [*target.options, f"mp_policy={policy}"]
    parts = [said for name, said in PARTS.items() if f"strategy.{name}" in settings]
    help = sentences(_to_write(settings, target), *dict.fromkeys(parts))
    return [Change(Outcome.LEFT, WRAPS, strategy.name, help=help.rstrip("."))]


def _is_object(settings: Settings, name: str) -> bool:
    setting = settings.get(f"strategy.{name}")
    return setting is not None and bool(setting.unknown)


def _to_write(settings: Settings, target: lightning.Target) -> str:
    """The strategy as hydra has it, or LightningCLI, and the hook."""
    named = str(settings["strategy"].value)
    home = named.rpartition(".")[0].removesuffix(".fsdp")
    name = f"{home or 'lightning.pytorch.strategies'}.{NEW}"
    of_hydra = "_target_" in settings or "strategy._target_" in settings
    arguments = ", ".join(f"{name}: {value}" for name, value in target.arguments().items())
    said = (
        f"write _target_: {name} with " if of_hydra else f"write class_path: {name} with init_args "
    )
    said += arguments if of_hydra else f"{{{arguments}}}"
    hook = "; then ".join(f"`{line}`" for line in target.hook())
    if target.fabric:
        return f"{said}, and parallelize_fn, a function (model, device_mesh) that says {hook}"
    return f"{said}, and a method configure_model(self) of the LightningModule that says {hook}"


def _left(reason: str, help: str) -> Change:
    return Change(Outcome.LEFT, f"ModelParallelStrategy has no {reason}", "strategy", help=help)


def _size(given: Mapping[str, Value]) -> str:
    devices, machines = given.get("devices"), given.get("num_nodes", 1)
    if type(devices) is int and type(machines) is int and devices > 0:
        return str(devices * machines)
    return "<number of processes>"
