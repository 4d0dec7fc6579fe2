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


def disagreement(param_dtype: ast.expr | None, module: Module, study: Study) -> str:
    """What to say where weights are certainly stored in another dtype than they are cast to."""
    cast = _dtype(param_dtype, module, study) if param_dtype is not None else ""
    if not cast:
        return ""
    for given, where in study.cache(_stored):
        stored = _dtype(given, where, study)
        if stored and stored != cast:
            return (
                f"quantised weights are stored as {stored} in {where.display}, and a "
                f"param_dtype of {cast} changes their bytes, as it did with FSDP1: use None or the "
                "dtype of the storage"
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


def _dtype(node: ast.expr, module: Module, study: Study) -> str:
    """The dtype that an expression certainly is, by torch's name or in quotes."""
    match list(study.values(node, module)):
        case [External(name=name)] if name.startswith("torch."):
            return name
        case [Constant(value=str() as name)]:
            return f"torch.{name}"
    return ""
