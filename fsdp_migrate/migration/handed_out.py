"""Models that are handed to functions and classes which are nowhere in what is looked at."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Unknown
from fsdp_migrate.families.wrapping.module_values import LIBRARIES
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name

# Packages of which rules know what their functions do with a model, or that do nothing with one.
KNOWN = LIBRARIES | sys.stdlib_module_names
KNOWN |= {"torch", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "safetensors"}
KNOWN |= {"comet_ml", "mlflow", "neptune", "tensorboard", "wandb"}
# What FSDP1 had its own way for: states, averages of parameters, gradients.
HANDLING = re.compile(r"save|load|state|checkpoint|ckpt|ema|average|clip|grad", re.I)


def calls(module: Module, study: Study) -> Iterator[tuple[ast.expr, str]]:
    """Calls of what nothing is known of that are given a model: of what the project says is its
    own, whatever it is called, and of others to do what FSDP1 had its own way for, as their names
    say."""
    for call in module.table.calls:
        name = last_name(call.func)
        if not HANDLING.search(name) and not _is_missing(call.func, module, study):
            continue
        if not _is_out_of_sight(call.func, module, study):
            continue
        if any(study.traced(given, module) for given in given_arguments(call)):
            yield call, f"what {name}() does with a model is not followed"


def is_outside(value: External, study: Study) -> bool:
    """Whether a function or class is of a package that is not there, and that no rule knows."""
    root = value.name.partition(".")[0]
    return root in study.project.packages or root not in KNOWN


def _is_missing(function: ast.expr, module: Module, study: Study) -> bool:
    """Whether a name is imported from a package of the project's own which has it nowhere."""
    return any(
        value.is_nowhere
        if isinstance(value, Unknown)
        else isinstance(value, External) and value.name.partition(".")[0] in study.project.packages
        for value in study.values(function, module)
    )


def _is_out_of_sight(function: ast.expr, module: Module, study: Study) -> bool:
    """Whether nothing is known of a function: it may be the project's own, in a file that is not
    in the given paths, or in a package that is not there."""
    values = study.values(function, module)
    return bool(values) and all(
        is_outside(value, study) if isinstance(value, External) else isinstance(value, Unknown)
        for value in values
    )
