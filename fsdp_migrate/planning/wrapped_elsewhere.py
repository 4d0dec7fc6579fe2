"""Why a project that uses FSDP1 models wraps none: a library does, or files that were not given.

Where a library does, what goes into it and what is asked of its models is its own business: it is
said what to write there, under both versions.
"""

from __future__ import annotations

import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project

# What a program gives to the library that wraps its models, or asks it about them.
LIBRARIES = {
    "FullyShardedDataParallelPlugin": "accelerate",
    "FSDPStrategy": "Lightning",
    "fsdp_transformer_layer_cls_to_wrap": "transformers",
    "is_fsdp_enabled": "transformers",
    "ACCELERATE_USE_FSDP": "accelerate",
    "fsdp_plugin": "accelerate",
}
# What runs the training, in files that import its library.
RUNNERS = (
    ("Trainer", "transformers", "transformers"),
    ("SFTTrainer", "trl", "transformers"),
    ("Accelerator", "accelerate", "accelerate"),
    ("ComposerModel", "composer", "composer"),
)
INSTEAD = {
    "accelerate": (
        "accelerator.get_state_dict(model) gives rank 0 the whole state under both versions, and "
        "accelerator.clip_grad_norm_ clips"
    ),
    "transformers": (
        "trainer.save_model() writes the trainer's whole model under both versions, and "
        "trainer.accelerator.get_state_dict(model) gives rank 0 that of any prepared model"
    ),
    "Lightning": (
        "save_checkpoint() and clip_gradients() of the Trainer, or save() and clip_gradients() of "
        "Fabric, do it under both versions"
    ),
    "composer": "trainer.save_checkpoint() writes the model under both versions",
}
"""What to write where FSDP1's functions are asked of a model that a library wraps."""

POLICIES = {
    "accelerate": (
        "accelerate's version 2 takes no function as a policy: name the classes of the layers in "
        "fsdp_transformer_layer_cls_to_wrap"
    ),
    "transformers": (
        "transformers' version 2 takes no function as a policy: name the classes of the layers in "
        "transformer_layer_cls_to_wrap of fsdp_config"
    ),
    "Lightning": "the hook that shards for ModelParallelStrategy (FSDP530) names the classes",
    "composer": "name the layers in fsdp_wrap_fn of the model",
}
"""What becomes of a policy that a library is given."""


SAID = "{} wraps the models here, as its own settings say"
BY_LIBRARY = tuple(map(SAID.format, INSTEAD))


def reason(project: Project, handed_on: str) -> str:
    """Why no model is wrapped.

    Args:
        handed_on: where FSDP1's class is handed on as a value, or an empty text.
    """
    library = library_of(project)
    if library:
        return SAID.format(library)
    if handed_on:
        return f"no model is wrapped by the name of FSDP1's class, which {handed_on} hands on"
    return "no model is wrapped with FSDP in the given paths"


def next_step(project: Project, handed_on: str) -> str:
    """What to do about that."""
    library = library_of(project)
    if library:
        return f"{INSTEAD[library]}: write that, and then version 2 in the settings of {library}"
    if handed_on:
        return "wrap by the name of the class, or give the path that wraps as well, and run again"
    return "give the path that wraps it as well"


def library_of(project: Project) -> str:
    """The library that the settings are for which some file makes, or that runs the training."""
    for name, library in LIBRARIES.items():
        if any(module.mentions(name) for module in project.modules):
            return library
    for name, root, library in RUNNERS:
        if any(_is_run(module, name, root) for module in project.modules):
            return library
    return ""


def _is_run(module: Module, name: str, root: str) -> bool:
    """Whether a file that imports the library speaks of its class, and of no ``OwnTrainer``."""
    if not module.mentions(name) or not module.mentions(root):
        return False
    text = module.source.text
    imported = re.search(rf'^[\s"]*(?:from|import)\s+{root}\b', text, re.MULTILINE)
    return bool(imported and re.search(rf"\b{name}\b", text))
