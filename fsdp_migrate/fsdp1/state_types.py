"""Calls of FSDP1's functions that set a kind of state."""

from __future__ import annotations

import ast

ARGUMENTS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
NEEDED = ARGUMENTS[:2]


def refused(call: ast.Call) -> str:
    """Why ``state_dict_type(...)`` or ``set_state_dict_type(...)`` raises ``TypeError``, or
    nothing: as torch's signature of both says."""
    unknown = [k.arg for k in call.keywords if k.arg is not None and k.arg not in ARGUMENTS]
    if unknown:
        return f"takes no {' or '.join(unknown)}"
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return ""
    if len(call.args) > len(ARGUMENTS):
        return f"takes {len(ARGUMENTS)} arguments"
    by_position = ARGUMENTS[: len(call.args)]
    twice = [k.arg for k in call.keywords if k.arg in by_position]
    if twice:
        return f"takes one {twice[0]}"
    given = {*by_position, *(k.arg for k in call.keywords)}
    missing = [name for name in NEEDED if name not in given]
    return f"needs a {missing[0]}" if missing and None not in given else ""
