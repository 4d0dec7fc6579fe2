"""The signatures of what emitted code calls, for every torch release it may run on.

``torch.json`` is data, made by `tests/tools/signatures.py` from released wheels:
for each public name the releases in which its parameters changed, oldest first.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from packaging.version import Version

DATA = Path(__file__).with_name("torch.json")


@dataclass(frozen=True)
class Table:
    """What torch offers, by release.

    ``functions`` are keyed by dotted name (``torch.distributed.fsdp.fully_shard``), ``methods`` by
    class and attribute (``torch.distributed.fsdp.FSDPModule.unshard``). Each maps a release to the
    parameters from then on, as they stand between the parentheses of a ``def``, or to None where
    the name does not exist.
    """

    releases: tuple[str, ...]
    functions: Mapping[str, Mapping[str, str | None]]
    methods: Mapping[str, Mapping[str, str | None]]

    @cached_property
    def by_attribute(self) -> Mapping[str, str]:
        """The full name of a method by its attribute name; only FSDP2's own are unmistakable."""
        return {full.rpartition(".")[2]: full for full in self.methods}

    @cached_property
    def last_names(self) -> frozenset[str]:
        """The last parts of the names of the functions."""
        return frozenset(name.rpartition(".")[2] for name in self.functions)

    def parameters(self, name: str, target: Version) -> str | None:
        """The parameters of ``name`` in ``target``, None when it does not exist there.

        A target older or newer than all known releases counts as the nearest one.

        Raises:
            KeyError: the table says nothing of ``name``.
        """
        history = self.functions.get(name) or self.methods[name]
        found = history[next(iter(history))]
        for release, parameters in history.items():
            if Version(release).release[:2] <= target.release[:2]:
                found = parameters
        return found

    def mismatch(self, name: str, call: ast.Call, target: Version) -> str:
        """Why ``call`` does not fit ``name`` in ``target``, or nothing when it does.

        Raises:
            KeyError: the table says nothing of ``name``.
        """
        parameters = self.parameters(name, target)
        if parameters is None:
            return f"{name} is not in torch {target}"
        problem = misfit(call, parameters)
        return f"{name} in torch {target}: {problem}" if problem else ""


def misfit(call: ast.Call, parameters: str) -> str:
    """Why a call does not fit parameters, as they stand in a ``def``, or nothing when it does."""
    bound = _signature(parameters)
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    positional = [None for a in call.args if not isinstance(a, ast.Starred)]
    keywords = {k.arg: None for k in call.keywords if k.arg is not None}
    open_ended = starred or len(keywords) < len(call.keywords)
    try:
        if open_ended:
            bound.bind_partial(*positional, **keywords)
        else:
            bound.bind(*positional, **keywords)
    except TypeError as error:
        return str(error)
    return ""


@cache
def load() -> Table:
    """The table that ships with the package."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return Table(tuple(data["releases"]), data["functions"], data["methods"])


@cache
def _signature(parameters: str) -> inspect.Signature:
    tree = ast.parse(f"def f({parameters}): ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    return inspect.Signature(list(_parameters(tree.args)))


def _parameters(args: ast.arguments) -> Iterator[inspect.Parameter]:
    kind = inspect.Parameter
    first = len(args.posonlyargs) + len(args.args) - len(args.defaults)
    for index, arg in enumerate((*args.posonlyargs, *args.args)):
        position = (
            kind.POSITIONAL_ONLY if index < len(args.posonlyargs) else kind.POSITIONAL_OR_KEYWORD
        )
        default = kind.empty if index < first else None
        yield inspect.Parameter(arg.arg, position, default=default)
    if args.vararg is not None:
        yield inspect.Parameter(args.vararg.arg, kind.VAR_POSITIONAL)
    for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        default = kind.empty if value is None else None
        yield inspect.Parameter(arg.arg, kind.KEYWORD_ONLY, default=default)
    if args.kwarg is not None:
        yield inspect.Parameter(args.kwarg.arg, kind.VAR_KEYWORD)
