"""Name the parameters of a unit whose dtypes differ, where torch stops at them.

FSDP1 flattens no two dtypes into one parameter, and FSDP2 reduces the gradients of a unit as one.
Both say which dtypes there are, and not of what. Frames of the traceback still know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

SHOWN = 3  # parameters of each dtype


def told(trace: TracebackType | None) -> str:
    """Which unit has parameters of which dtypes, in words; empty for errors about other things."""
    with contextlib.suppress(AttributeError, KeyError):  # another torch than those it was made for
        for function, values in _frames(trace):
            match function:
                case "_init_mp_dtypes":
                    return _of_group(values["self"])
                case "_init_flat_param_and_metadata":
                    return _of_flat_parameter(values["params"], values["module"], trace)
    return ""


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, dict[str, Any]]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_name, trace.tb_frame.f_locals
        trace = trace.tb_next


def _of_group(group: Any) -> str:
    trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
    return _in_words(group._module_fqn, ((p._param_fqn, p.orig_dtype) for p in trained))


def _of_flat_parameter(parameters: list[Any], unit: Any, trace: TracebackType | None) -> str:
    """FSDP1 makes units from within, so that the outermost call knows them by whole names."""
    made = (values for function, values in _frames(trace) if function == "__init__")
    whole = next(v["module"] for v in made if hasattr(v.get("self"), "clip_grad_norm_"))
    modules = {id(module): name for name, module in whole.named_modules()}
    names = {id(parameter): name for name, parameter in whole.named_parameters()}
    held = ((names.get(id(p), "?"), p.dtype) for p in parameters)
    return _in_words(modules.get(id(unit)), held)


def _in_words(unit: str | None, parameters: Iterable[tuple[str, Any]]) -> str:
    by_dtype: dict[str, list[str]] = {}
    for name, dtype in parameters:
        by_dtype.setdefault(str(dtype), []).append(name)
    if len(by_dtype) < 2:
        return ""
    parts = []
    for dtype, names in sorted(by_dtype.items(), key=lambda item: len(item[1])):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        parts.append(f"{dtype} ({', '.join(names[:SHOWN])}{more})")
    return f"{unit or 'the root'}, as one unit, has {' and '.join(parts)}"
