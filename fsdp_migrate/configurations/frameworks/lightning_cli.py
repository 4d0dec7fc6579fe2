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
    if given.get("cpu_offload"):
        return [_left("cpu_offload under the Trainer", "do without it")]
    if str(given.get("precision")) in lightning.UNSUPPORTED:
        return [_left(f"precision: {given['precision']}", "write bf16-mixed")]
    target = lightning.Target(False, _size(given))
    target.sharded = given.get("state_dict_type") == "sharded"
    target.options = [] if words.RESHARDING[named] else ["reshard_after_forward=False"]
    if str(given.get("precision")) in lightning.BFLOAT16:
        policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
        target.options = [*target.options, f"mp_policy={policy}"]
    where = "write class_path: lightning.pytorch.strategies.ModelParallelStrategy"
    arguments = ", ".join(f"{name}: {value}" for name, value in target.arguments().items())
    units = [UNITS] if "auto_wrap_policy" in given else []
    hook = "; then ".join(f"`{line}`" for line in target.hook())
    said = f"{where} with init_args {{{arguments}}}, and a method configure_model(self) of the "
    help = sentences(f"{said}LightningModule that says {hook}", *units)
    return [Change(Outcome.LEFT, WRAPS, strategy.name, help=help.rstrip("."))]


def _left(reason: str, help: str) -> Change:
    return Change(Outcome.LEFT, f"ModelParallelStrategy has no {reason}", "strategy", help=help)


def _size(given: Mapping[str, Value]) -> str:
    devices, machines = given.get("devices"), given.get("num_nodes", 1)
    if type(devices) is int and type(machines) is int and devices > 0:
        return str(devices * machines)
    return "<number of processes>"
