"""Code that looks for a part of a text in the name of a class.

``"FullyShardedDataParallel" in type(m).__name__`` is true of FSDP1's wrapper, and of nothing that
``fully_shard`` has taken, whose class is ``FSDPBlock``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import Kind

NAMES = frozenset({"__name__", "__qualname__"})
# What a class is called alone, and as text with the place that it comes from.
WRAPPER = (
    fsdp1.FSDP,
    "<class 'torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel'>",
)
SHARDED = ("FSDP", "<class 'torch.distributed.fsdp._fully_shard._fully_shard.FSDP")
ONLY_ITS_OWN = ("fullyshard", "fully_shard")  # in the name of no other wrapper of torch's
OTHERS_OF_THE_NAME = ("fairscale", "torch_xla")
TEXTS = frozenset({"str", "repr"})
METHODS = frozenset({"startswith", "endswith"})
NAMES_DEEP = 2


@dataclass(frozen=True, eq=False)
class PartTest:
    """A question for ``part`` in the name of the class of ``subject``."""

    node: ast.expr
    text: ast.expr
    subject: ast.expr
    part: str
    with_place: bool  # the class as text, not its name alone
    lowered: bool
    is_negated: bool = False
    at_end: str = ""  # startswith, endswith

    def _is_true_of(self, names: tuple[str, str]) -> bool:
        text = names[self.with_place]
        text = text.lower() if self.lowered else text
        return bool(getattr(text, self.at_end)(self.part) if self.at_end else self.part in text)

    @property
    def asks_for_wrapper(self) -> bool:
        """Whether it was true of FSDP1's wrapper, and is false of what FSDP2 shards."""
        return self._is_true_of(WRAPPER) and not self._is_true_of(SHARDED)

    @property
    def is_true_now(self) -> bool:
        """Whether it was false of FSDP1's wrapper, and is true of everything that FSDP2 shards."""
        return self._is_true_of(SHARDED) and not self._is_true_of(WRAPPER)

    @property
    def of_wrapper_alone(self) -> bool:
        return any(each in self.part.lower() for each in ONLY_ITS_OWN)


def nodes_of_parts(study: Study, module: Module) -> set[ast.AST]:
    """The expressions that such questions are made of, which are answered with them."""
    return {node for test in parts_asked_for(study, module) for node in ast.walk(test.text)}


def read_part(node: ast.expr, study: Study, module: Module) -> PartTest:
    """The question that a site is."""
    return next(test for test in parts_asked_for(study, module) if test.node is node)


def parts_asked_for(study: Study, module: Module) -> Iterator[PartTest]:
    """The questions whose answer is another one for sharded modules."""
    if not study.constructors or not module.mentions("type", "__class__"):
        return
    for string in module.table.strings:
        part = string.value
        if not isinstance(part, str) or not part:
            continue
        node, at_end, negated = module.table.parents[string], "", False
        match node:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op]) if left is string:
                text, negated = node.comparators[0], isinstance(op, ast.NotIn)
            case ast.Call(func=ast.Attribute(value=text, attr=at_end)) if (
                at_end in METHODS and node.args == [string]
            ):
                pass
            case _:
                continue
        found = _classified(text, module, NAMES_DEEP)
        if found is not None:
            subject, with_place, lowered = found
            test = PartTest(node, text, subject, part, with_place, lowered, negated, at_end)
            if test.asks_for_wrapper or test.is_true_now:
                yield test


def _classified(text: ast.expr, module: Module, depth: int) -> tuple[ast.expr, bool, bool] | None:
    """``m`` of ``type(m).__name__`` and of ``str(type(m)).lower()``, whether the text has the place
    of the class too, and whether it is in small letters."""
    if isinstance(text, ast.Name):
        found = list(definitions(text, module)) if depth else []
        value = found[0].value if len(found) == 1 and found[0].kind is Kind.ASSIGN else None
        known = value is not None and not found[0].unpack
        return _classified(value, module, depth - 1) if known and value is not None else None
    match text:
        case ast.Call(func=ast.Attribute(value=inner, attr="lower"), args=[]):
            asked = _classified(inner, module, depth)
            return None if asked is None else (asked[0], asked[1], True)
        case ast.Attribute(value=kind, attr=name) if name in NAMES:
            subject, with_place = classified(kind), False
        case ast.Call(func=ast.Name(id=name), args=[kind]) if name in TEXTS:
            subject, with_place = classified(kind), True
        case _:
            return None
    return None if subject is None else (subject, with_place, False)
