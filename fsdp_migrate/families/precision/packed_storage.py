"""Weights whose bytes are packed into numbers of another dtype, as quantised ones are.

What FSDP casts is the numbers: the bytes come back as they were where ``param_dtype`` is None or
the dtype that they are stored in. Measured: fp16 changes bytes that are stored as bf16, and fp32
gives the kernel another dtype. FSDP1 does the same.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, External
from fsdp_migrate.planning.context import Study

KEYWORDS = ("bnb_4bit_quant_storage", "quant_storage")  # of transformers, of bitsandbytes
NONE = "None"  # as a dtype: nothing is cast


def disagreement(param_dtype: ast.expr | None, module: Module, study: Study) -> str:
    """What to say where weights may be stored in another dtype than they are cast to.

    Where the storage has several dtypes, the program may choose both alike, so that a
    ``param_dtype`` is told of only if it is none of them.
    """
    if param_dtype is None:
        return ""
    for given, where in study.cache(_stored):
        stored, is_known = _dtypes(given, where, study)
        if not stored or not is_known:
            continue
        cast, is_known = _dtypes(param_dtype, module, study)
        wrong = sorted(cast - stored - {NONE})
        if not wrong and is_known:
            continue
        kept = f"quantised weights are stored as {' or '.join(sorted(stored))} in {where.display}"
        if not wrong:
            said = "param_dtype is only known at run time: any other dtype changes"
        elif len(cast) == 1 and is_known:
            said = f"a param_dtype of {wrong[0]} changes"
        else:
            said = f"param_dtype may be {' or '.join(wrong)}, which changes"
        return (
            f"{kept}, and {said} their bytes, as it did with FSDP1: use None or the dtype of the "
            "storage"
        )
    return ""


def _stored(study: Study) -> list[tuple[ast.expr, Module]]:
    """What the project's calls give for the dtype of such a storage."""
    return [
        (keyword.value, module)
        for module in study.project.modules
        if module.mentions(*KEYWORDS)
        for call in module.table.calls
        for keyword in call.keywords
        if keyword.arg in KEYWORDS
    ]


def _dtypes(node: ast.expr, module: Module, study: Study) -> tuple[set[str], bool]:
    """The dtypes that an expression may be, and whether these are all; None is one of them."""
    found: set[str] = set()
    is_known = True
    for value in study.values(node, module):
        match value:
            case External(name=name) if name.startswith("torch."):
                found.add(name)
            case Constant(value=str() as name):
                found.add(f"torch.{name}")
            case Constant(value=None):
                found.add(NONE)
            case _:
                is_known = False
    return found, is_known
