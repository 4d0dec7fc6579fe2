"""Every collective the program or FSDP issues: how many, of what, and which came last."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any

import torch
import torch.distributed as dist

from fsdp_migrate.verify.capture.session import Session, nested, replace

# Functions with a `group` argument that do not communicate.
_SILENT = frozenset(
    {
        "destroy_process_group",
        "get_backend",
        "get_backend_config",
        "get_global_rank",
        "get_group_rank",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "new_subgroups",
        "shrink_group",
    }
)

# Names have moved between versions (all_gather_into_tensor became all_gather_single in torch 2.13),
# so what is compared is the family.
_FAMILIES = (
    ("reduce_scatter", "reduce-scatter"),
    ("all_gather", "all-gather"),
    ("all_reduce", "all-reduce"),
    ("all_to_all", "all-to-all"),
    ("broadcast", "broadcast"),
    ("_broadcast", "broadcast"),
)


def install(session: Session) -> None:
    """Patch all communicating functions of ``torch.distributed``.

    They are found by their signature, not by a list: a list silently records nothing once torch
    renames a function.
    """
    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    for name in _communicating(c10d, c10d.__all__):
        replace(c10d, name, functools.partial(_collective, session, name))
        if hasattr(dist, name):
            setattr(dist, name, getattr(c10d, name))


def install_functional(session: Session) -> None:
    """Patch the functional collectives, which DTensor uses.

    They return before they have communicated; ``wait_tensor`` is where a rank really waits.
    """
    functional = sys.modules["torch.distributed._functional_collectives"]
    for name in _communicating(functional, vars(functional)):
        if not name.startswith(("_", "legacy_")):
            replace(functional, name, functools.partial(_collective, session, name))

    def wait_tensor(original: Any, tensor: Any) -> Any:
        session.beat(f"wait_tensor:{session.last}", "ENTER")
        result = original(tensor)
        session.beat(session.last, "LEFT")
        return result

    replace(functional, "wait_tensor", wait_tensor)


def _communicating(module: types.ModuleType, names: Any) -> list[str]:
    found = []
    for name in list(names):
        # The deprecated `reduce_op` prints a warning as soon as it is asked for its attributes, as
        # `isinstance` does.
        function = vars(module).get(name)
        if (
            type(function) is types.FunctionType
            and name not in _SILENT
            and "group" in inspect.signature(function).parameters
        ):
            found.append(name)
    return found


def _collective(session: Session, name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    with nested(session, "collective_depth") as outermost:
        if not outermost:
            return original(*args, **kwargs)
        session.attempt("identify", session.identify)
        session.attempt(name, _note, session, name, args, kwargs)
        session.issued += 1
        session.last = name
        session.beat(name, "ENTER")
        result = original(*args, **kwargs)
        session.beat(name, "LEFT")
        return result


def _note(session: Session, name: str, args: Any, kwargs: Any) -> None:
    if _is_alone(args, kwargs):
        return
    family = next((f for start, f in _FAMILIES if name.startswith(start)), name)
    size, dtype = _traffic((*args, *kwargs.values()))
    key = (session.phase, family, dtype)
    session.collectives[key] += 1
    session.collective_bytes[key] += size


def _is_alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the group has one rank, so that nothing is exchanged: FSDP1 asks such a group to
    reduce, where FSDP2 asks it to gather."""
    given = (kwargs.get("group"), *args)
    group = next((each for each in given if isinstance(each, dist.ProcessGroup)), None)
    return group is not None and group.size() == 1


def _traffic(arguments: tuple[Any, ...]) -> tuple[int, str]:
    """Bytes and dtype of the largest tensor (or list of tensors) among the arguments.

    The largest is the gathered output or the unreduced input, which FSDP1 and FSDP2 size alike.
    """
    best, dtype = 0, "object"
    for argument in arguments:
        tensors = argument if isinstance(argument, list | tuple) else [argument]
        tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
        size = sum(t.numel() * t.element_size() for t in tensors)
        if tensors and size >= best:
            best, dtype = size, str(tensors[0].dtype)[6:]
    return best, dtype
