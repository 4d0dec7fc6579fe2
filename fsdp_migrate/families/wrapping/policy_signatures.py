"""Whether FSDP1 would have taken a policy of torch's: by the parameters that it has.

FSDP1 asks a policy for each module, by the names of three parameters; what has others without a
value stops there (``torch/distributed/fsdp/wrap.py``, the same in torch 2.0 to 2.15).
"""

from __future__ import annotations

import ast
from typing import Final

from fsdp_migrate.signatures import misfit

NAMES: Final = ("module", "recurse", "nonwrapped_numel")
ASKED: Final = ", ".join(NAMES)
PARAMETERS: Final = {
    "always_wrap_policy": "*args, **kwargs",
    "transformer_auto_wrap_policy": f"{ASKED}, transformer_layer_cls",
    "lambda_auto_wrap_policy": f"{ASKED}, lambda_fn",
    "_or_policy": f"{ASKED}, policies",
    "_module_wrap_policy": f"{ASKED}, module_classes",
    "size_based_auto_wrap_policy": (
        f"{ASKED}, min_num_params=..., force_leaf_modules=..., exclude_wrap_modules=..."
    ),
    "ModuleWrapPolicy": "module_classes",
    "CustomPolicy": "lambda_fn",
}
"""The parameters of torch's policies, as they stand between the parentheses of a ``def``."""
CLASSES: Final = frozenset({"ModuleWrapPolicy", "CustomPolicy"})


def problem_when_asked(name: str, bound: ast.Call | None = None) -> str:
    """Why FSDP1 stops where it asks a policy of torch's, bound by a partial or not, if it does."""
    given = [k for k in bound.keywords if k.arg not in NAMES] if bound else []
    positional = bound.args[1:] if bound else []
    asks = [ast.keyword(each, ast.Constant(None)) for each in NAMES]
    asked = ast.Call(ast.Name(name), positional, [*given, *asks])
    problem = misfit(asked, PARAMETERS[name])
    return f"FSDP1 stops where it asks {name}: {problem}" if problem else ""


def problem_when_called(name: str, call: ast.Call) -> str:
    """Why a call of a policy of torch's stops, if it does."""
    problem = misfit(call, PARAMETERS[name])
    return f"FSDP1's {name} stops where it is called: {problem}" if problem else ""
