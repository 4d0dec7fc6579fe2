"""verl: hydra's settings by their whole path, in YAML files and as overrides of a command.

``actor_rollout_ref.actor.strategy``, ``critic.model.fsdp_config.forward_prefetch``. Read in verl of
2026-01-29 and in 0.9.1: a role says ``fsdp`` or ``fsdp2``; the reference policy follows the actor
where it says nothing; sizes of units are not read by the second.
"""

from __future__ import annotations

from fsdp_migrate.configurations.frameworks.words import left, review, rewritten, stays, whole
from fsdp_migrate.configurations.settings import Change, Setting, Settings

ROLES = {
    "actor_rollout_ref.actor": ("actor_rollout_ref.actor.fsdp_config",),
    "actor_rollout_ref.ref": ("actor_rollout_ref.ref.fsdp_config",),
    "critic": ("critic.model.fsdp_config", "critic.fsdp"),
    "reward_model": ("reward_model.model.fsdp_config",),
    "model": ("model.fsdp_config",),
    "engine": ("engine",),
}
"""Each role's name before ``.strategy``, and where its settings are; the critic's moved. ``model``
is the older trainer for supervised fine-tuning, whose default is ``fsdp2``; that of 0.9 has
``engine``."""

OF_ENGINE = frozenset({"fsdp_size", "offload_policy", "reshard_after_forward", "use_orig_params"})
"""Keys of ``engine`` by which it is FSDP's, and no other engine's."""

ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
DEAD = ("forward_prefetch", "use_orig_params")
SCHEMA = "_target_"  # of a file that has the defaults of a role
FILES = (
    "checkpoints that were written before are files of FSDP1's flat parameters, one a rank, which "
    "fsdp2 does not load: merge them to a Hugging Face model first (python -m verl.model_merger)"
)


def migrate(settings: Settings) -> list[Change]:
    """What becomes of the settings of one run of verl."""
    changes: list[Change] = []
    for role in ROLES:
        changes += _role(settings, role)
    first = next((change for change in changes if FILES in change.message), None)
    return [
        rewritten("verl's name of FSDP2", change.old, change.new)
        if change is not first and change.message == FILES
        else change
        for change in changes
    ]


def _role(settings: Settings, role: str) -> list[Change]:
    name = f"{role}.strategy"
    setting = settings.get(name)
    if setting is None:
        return _unsaid(settings, role)
    if setting.unknown:
        follows = role == REFERENCE and f"{ACTOR}.strategy" in setting.unknown
        return [] if follows else [left(f"{name} is not known here: {setting.unknown}", name)]
    if str(setting.value).strip().lower() != "fsdp":
        return []  # fsdp2 already, megatron, or to be filled in
    return [review(FILES, name, (name, "fsdp2")), *_block(settings, role)]


def _unsaid(settings: Settings, role: str) -> list[Change]:
    """A role with settings of FSDP, and none that says which: the default is ``fsdp``."""
    roles = (role, REFERENCE) if role == ACTOR else (role,)  # the reference follows the actor
    given = [key for each in roles for key, _ in _of(settings, each)]
    if role == "engine":
        given = [key for key in given if key in OF_ENGINE or key.startswith("wrap_policy.")]
    if role in {REFERENCE, "model"} or not given:
        return []
    actor = settings.get(f"{ACTOR}.strategy")
    if actor is not None and str(actor.value).strip().lower() not in {"fsdp", "fsdp2"}:
        return []
    name = f"{role}.strategy"
    message = f"verl's default for {role} is fsdp; {FILES}"
    return [review(message, "", (name, "fsdp2")), *_block(settings, role)]


def _of(settings: Settings, role: str) -> list[tuple[str, Setting]]:
    """The settings of a role, each with its name in its block."""
    return [
        (name.removeprefix(f"{block}."), setting)
        for block in ROLES[role]
        for name, setting in settings.items()
        if name.startswith(f"{block}.") and name != f"{role}.strategy"
    ]


def _block(settings: Settings, role: str) -> list[Change]:
    """The role's settings: what FSDP1 alone has, and what must be said for FSDP2."""
    changes: list[Change] = []
    for key, setting in _of(settings, role):
        if key in DEAD and setting.name.removesuffix(key) + SCHEMA in settings:
            continue  # hydra refuses to override what is not there, and nothing else reads it
        if key in DEAD:
            changes.append(rewritten("verl gives it to FSDP1 alone", setting.name))
        elif key == "wrap_policy.min_num_params" and (whole(setting.value) or 0) > 0:
            message = "units by size are not read under fsdp2"
            place = setting.name.removesuffix("min_num_params")
            help = f"name the classes: {place}transformer_layer_cls_to_wrap"
            changes.append(left(message, setting.name, help=help))
        elif key.startswith("mixed_precision") and key.endswith("buffer_dtype"):
            changes.append(stays("FSDP2 leaves buffers in the dtype that they have", setting))
    return changes
