"""Why a project that uses FSDP1 models wraps none: a library does, or files that were not given."""

from __future__ import annotations

from fsdp_migrate.analysis.project import Project

# What a program gives to the library that wraps its models, or asks it about them.
LIBRARIES = {
    "FullyShardedDataParallelPlugin": "accelerate",
    "FSDPStrategy": "Lightning",
    "fsdp_transformer_layer_cls_to_wrap": "transformers",
    "is_fsdp_enabled": "transformers",
    "ACCELERATE_USE_FSDP": "accelerate",
}


def reason(project: Project) -> str:
    library = _library(project)
    if library:
        return f"{library} wraps the models here, as its own settings say"
    return "no model is wrapped with FSDP in the given paths"


def next_step(project: Project) -> str:
    library = _library(project)
    if library:
        return f"migrate it together with the settings of {library} for FSDP2"
    return "give the path that wraps it as well"


def _library(project: Project) -> str:
    """The library that the settings are for which some file makes."""
    for name, library in LIBRARIES.items():
        if any(module.mentions(name) for module in project.modules):
            return library
    return ""
