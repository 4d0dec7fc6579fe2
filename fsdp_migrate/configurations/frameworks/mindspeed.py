"""MindSpeed-MM: ``use_fsdp1`` of a model's JSON, and the YAML that its FSDP2 reads.

Read in MindSpeed-MM of 2026 (57069cd5): FSDP1 is a patch that the model's file asks for; FSDP2 is
asked for on the command line, and which modules are units stands in a file of its own. Which those
are is known where the model is: ``verify --fsdp2-config`` writes that file.
"""

from __future__ import annotations

from fsdp_migrate.configurations import brace_paths
from fsdp_migrate.configurations.frameworks.words import RESHARDING, left, strategy, whole
from fsdp_migrate.configurations.settings import Change, Settings, Value

FSDP1 = "use_fsdp1"
SIZE, RESHARD, WRAPPED = "sharding_size", "reshard_after_forward", "sub_modules_to_wrap"
PATHS = (WRAPPED, "ignored_modules", "recompute_modules", "moe_modules")
STRATEGIES = {
    "fsdp": "FULL_SHARD",
    "sdp": "SHARD_GRAD_OP",
    "no": "NO_SHARD",
    "hybrid": "HYBRID_SHARD",
    "hybrid_zero2": "HYBRID_SHARD_ZERO2",
}
FLAGS = (
    "take it out and start with --use-torch-fsdp2 --fsdp2-config-path <file> --ckpt-format "
    "torch_dcp --untie-embeddings-and-output-weights, without --use-distributed-optimizer and "
    "--recompute-*, where CUDA_DEVICE_MAX_CONNECTIONS is not 1; fsdp-migrate verify "
    "--fsdp2-config <file> writes the file, which has {0}"
)


def migrate(settings: Settings) -> list[Change]:
    """What is wrong in a file of FSDP2, and what takes the place of FSDP1's patch."""
    first = next((name for name in settings if name.split(".")[0] == FSDP1), "")
    if first:
        return [_patch(settings, first)]
    changes = []
    for key in PATHS:
        setting = settings.get(key)
        for path in () if setting is None or setting.unknown else _listed(setting.value):
            try:
                brace_paths.read(path)
            except brace_paths.PathError as error:
                help = "write one line for each pair of braces: layers.{0-3,5} or layers.{*}"
                changes.append(left(str(error), key, help=help))
    reshard, size = settings.get(RESHARD), settings.get(SIZE)
    if reshard is not None and not reshard.unknown and not (size is not None and size.unknown):
        known = whole(size.value) if size is not None else 1
        wrong = wrong_resharding(reshard.value, known)
        if wrong:
            changes.append(left(wrong, RESHARD, help="write true, false or a divisor of the size"))
    return changes


def wrong_resharding(value: Value, size: int | None) -> str:
    """Why a number for ``reshard_after_forward`` is none, over shards of a size if it is known."""
    if isinstance(value, bool) or not isinstance(value, int):
        return ""
    if value < 1 or (size is not None and size % value):
        of = f"{SIZE}, which is {size}" if size is not None else SIZE
        return f"{RESHARD}: {value} does not divide {of}"
    return ""


def _patch(settings: Settings, first: str) -> Change:
    """FSDP1's patch, which the model's file asks for: the command asks for FSDP2."""
    given = settings.get(f"{FSDP1}.sharding_strategy")
    named = STRATEGIES.get(str(given.value), "") if given is not None else "FULL_SHARD"
    named = named or strategy(given.value if given is not None else None) or ""
    if named in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        means = f"{SIZE}: auto and {RESHARD}: {str(RESHARDING[named]).lower()}"
    elif named.startswith("HYBRID"):
        means = f"{SIZE}: <ranks of one machine> and {RESHARD}: {str(RESHARDING[named]).lower()}"
    elif named == "NO_SHARD":
        means = f"{SIZE}: 1"
    else:
        means = f"{SIZE} and {RESHARD} for the strategy that is meant"
    message = "MindSpeed-MM's FSDP1 is a patch; its FSDP2 is asked for on the command line"
    return left(message, first, help=FLAGS.format(means))


def _listed(value: Value) -> list[str]:
    return [str(path) for path in value] if isinstance(value, tuple) else []
