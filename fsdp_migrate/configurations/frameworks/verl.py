"""verl: hydra's settings by their whole path, in YAML files and as overrides of a command.

``actor_rollout_ref.actor.strategy``, ``critic.model.fsdp_config.forward_prefetch``. Read in verl of
2026-01-29: a role says ``fsdp`` or ``fsdp2``; the reference policy follows the actor where it says
nothing; sizes of units are not read by the second.
"""

from __future__ import annotations

from fsdp_migrate.configurations.frameworks.words import left, review, rewritten, stays, whole
from fsdp_migrate.configurations.settings import Change, Setting, Settings

ROLES = {
    "actor_rollout_ref.actor": "actor_rollout_ref.actor.fsdp_config",
    "actor_rollout_ref.ref": "actor_rollout_ref.ref.fsdp_config",
    "critic": "critic.model.fsdp_config",
    "reward_model": "reward_model.model.fsdp_config",
    "model": "model.fsdp_config",
}
"""Each role's name before ``.strategy``, and where its ``fsdp_config`` is. ``model`` is the trainer
for supervised fine-tuning, whose default is ``fsdp2`` in recent releases."""

ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
DEAD = ("forward_prefetch", "use_orig_params")
FILES = (
    "checkpoints that were written before are files of FSDP1's flat parameters, one a rank, which "
    "fsdp2 does not load: merge them to a Hugging Face model first (python -m verl.model_merger)"
)


def migrate(settings: Settings) -> list[Change]:
    """What becomes of the settings of one run of verl."""
    changes: list[Change] = []
    for role, block in ROLES.items():
        changes += _role(settings, role, block)
    first = next((change for change in changes if FILES in change.message), None)
    return [
        rewritten("verl's name of FSDP2", change.old, change.new)
        if change is not first and change.message == FILES
        else change
        for change in changes
    ]


def _role(settings: Settings, role: str, block: str) -> list[Change]:
    name = f"{role}.strategy"
    setting = settings.get(name)
    if setting is None:
        return _unsaid(settings, role, block)
    if setting.unknown:
        follows = role == REFERENCE and f"{ACTOR}.strategy" in setting.unknown
        return [] if follows else [left(f"{name} is not known here: {setting.unknown}", name)]
    if str(setting.value).strip().lower() != "fsdp":
        return []  # fsdp2 already, megatron, or to be filled in
    return [review(FILES, name, (name, "fsdp2")), *_block(settings, block)]


def _unsaid(settings: Settings, role: str, block: str) -> list[Change]:
    """A role with settings of FSDP, and none that says which: the default is ``fsdp``."""
    follows = ROLES[REFERENCE] if role == ACTOR else block  # the reference follows the actor
    if role in {REFERENCE, "model"} or not (_of(settings, block) or _of(settings, follows)):
        return []
    actor = settings.get(f"{ACTOR}.strategy")
    if actor is not None and str(actor.value).strip().lower() not in {"fsdp", "fsdp2"}:
        return []
    name = f"{role}.strategy"
    message = f"verl's default for {role} is fsdp; {FILES}"
    return [review(message, "", (name, "fsdp2")), *_block(settings, block)]


def _of(settings: Settings, block: str) -> list[Setting]:
    return [s for name, s in settings.items() if name.startswith(f"{block}.")]


def _block(settings: Settings, block: str) -> list[Change]:
    """The role's ``fsdp_config``: what FSDP1 alone has, and what must be said for FSDP2."""
    changes: list[Change] = []
    for setting in _of(settings, block):
        key = setting.name.removeprefix(f"{block}.")
        if key in DEAD:
            changes.append(rewritten("verl gives it to FSDP1 alone", setting.name))
        elif key == "wrap_policy.min_num_params" and (whole(setting.value) or 0) > 0:
            message = "units by size are not read under fsdp2"
            help = f"name the classes: {block}.wrap_policy.transformer_layer_cls_to_wrap"
            changes.append(left(message, setting.name, help=help))
        elif key.startswith("mixed_precision") and key.endswith("buffer_dtype"):
            changes.append(stays("FSDP2 leaves buffers in the dtype that they have", setting))
    return changes
