"""Which parts of a module its ``forward`` always runs, and which only under a condition.

A condition counts when it is on what ``forward`` is given: ``if mask is not None: self.a(x)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made, Values
from fsdp_migrate.families.modules.given_inputs import GivenInputs
from fsdp_migrate.families.wrapping import computing_methods
from fsdp_migrate.families.wrapping.computing_methods import FunctionNode, Methods
from fsdp_migrate.families.wrapping.named_units import named_units
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.library_source import parameters_of
from fsdp_migrate.planning.model import Constructor, is_none
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import children, walk

DRAWN = re.compile(r"\b(rand|randn|randint|random|bernoulli|uniform_?)\b")
# What an input is asked that is the same in every step, or only tells how it is stored.
FORM = frozenset(
    {"shape", "size", "dim", "ndim", "ndimension", "dtype", "device", "is_cuda", "numel"}
)
ASKING = frozenset({"isinstance", "len", "hasattr", "type", "callable"})
PARAMETER = re.compile(r"^torch\.nn\.(parameter\.)?Parameter$")
DEEP = 5  # methods that call methods


@dataclass
class Parts:
    """The parts that some code always runs, and those that it may run."""

    always: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)

    def then(self, other: Parts) -> None:
        self.always |= other.always
        self.perhaps |= other.perhaps

    def either(self, first: Parts, second: Parts) -> None:
        self.always |= first.always & second.always
        self.perhaps |= first.always ^ second.always
        self.perhaps |= first.perhaps | second.perhaps


class ConditionalParts:
    """Reads the ``forward`` of classes."""

    def __init__(self, study: Study, constructor: Constructor) -> None:
        self.study, self.methods = study, Methods(study)
        self.units = named_units(constructor, study)
        self.given = study.cache(GivenInputs.of)

    def unused(self, cls: Class) -> list[str]:
        found = self.methods.find(cls, "forward")
        if found is None or found[0].node is not cls.node:
            return []
        parts = self.function(cls, *found, frozenset(), self.given.places)
        return sorted(parts.perhaps - parts.always)

    def function(
        self,
        cls: Class,
        owner: Class,
        node: FunctionNode,
        seen: frozenset[FunctionNode],
        given: Collection[int],
    ) -> Parts:
        """The parts that a method runs whose arguments at the ``given`` places may differ from step
        to step; those that calls name may as well."""
        parameters = [*node.args.posonlyargs, *node.args.args]
        if not parameters or node in seen or len(seen) > DEEP:
            return Parts()
        this, *others = (each.arg for each in parameters)
        at_places = {name for place, name in enumerate(others) if place in given}
        body = _Body(self, cls, owner, node, this, at_places, seen | {node})
        return body.block(node.body)

    def part(self, values: Values) -> bool:
        """Whether an attribute is a part with parameters that is no unit of its own."""
        inside = self.methods.attributes.elements(values)
        if not self.methods.attributes.kind(inside) and not self.methods.attributes.kind(values):
            return False
        return not any(self._is_unit(v) for v in inside | values)

    def _is_unit(self, value: object) -> bool:
        """Whether a part is a unit: where it is left out, FSDP1 gave it no gradients either."""
        if not isinstance(value, Made):
            return False
        if value.node in self.study.constructors or value.node in self.units:
            return True
        if isinstance(value.callee, Class):
            lineage = {base.node for base in self.study.tracer.lineage(value.callee)}
            return not lineage.isdisjoint(self.units)
        return value.made_by in self.units


class _Body:
    """One method: which parts it runs."""

    def __init__(
        self,
        reader: ConditionalParts,
        cls: Class,
        owner: Class,
        function: FunctionNode,
        this: str,
        given: Collection[str],
        seen: frozenset[FunctionNode],
    ) -> None:
        self.reader, self.cls, self.owner, self.seen = reader, cls, owner, seen
        self.given = given  # arguments that differ from step to step, by their places
        self.module: Module = owner.module
        self.this = this
        self.optional: set[str] = set()  # inputs that are None unless they are given
        self.inputs = set(self._inputs(function))
        self.aliases: dict[str, tuple[str, bool]] = {}  # local name -> part, picked by an input

    def _inputs(self, function: FunctionNode) -> Iterator[str]:
        args = function.args
        for argument, default in list(parameters_of(function).items())[1:]:
            if default is not None and is_none(default):
                self.optional.add(argument)
            if default is None or self._varies(argument, default):
                yield argument
        yield from (a.arg for a in (args.vararg, args.kwarg) if a is not None)

    def _varies(self, argument: str, default: ast.expr) -> bool:
        """Whether an argument with a default may be given as something else."""
        if not isinstance(default, ast.Constant) or argument in self.given:
            return True
        return self.reader.given.may_have(argument)

    # -- statements -------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> Parts:
        result = Parts()
        for index, statement in enumerate(statements):
            if isinstance(statement, ast.If) and self._is_input(statement.test):
                result.then(self.expression(statement.test))
                first, second = _leaves(statement.body), _leaves(statement.orelse)
                rest = statements[index + 1 :] if first or second else []
                if first == "raise" or second == "raise":
                    result.then(
                        self.block(statement.orelse if first == "raise" else statement.body)
                    )
                    continue
                one = self.block([*statement.body, *([] if first else rest)])
                other = self.block([*statement.orelse, *([] if second else rest)])
                usual = self._usual(statement.test)
                if usual is None:
                    result.either(one, other)
                else:
                    result.then(one if usual else other)
                    seldom = other if usual else one
                    result.perhaps |= seldom.always | seldom.perhaps
                if rest:
                    return result
                continue
            result.then(self._statement(statement))
        return result

    def _statement(self, statement: ast.stmt) -> Parts:
        result = Parts()
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                result.then(self.expression(test))
                result.then(self.block(body))
                result.then(self.block(orelse))
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self._loop(target, iterated)
                result.then(self.expression(iterated))
                result.then(self.block(body))
                result.then(self.block(orelse))
            case ast.While(test=test, body=body):
                result.then(self.expression(test))
                result.then(self.block(body))
            case ast.With(items=items, body=body):
                for item in items:
                    result.then(self.expression(item.context_expr))
                result.then(self.block(body))
            case ast.Try(body=body, finalbody=final):
                result.then(self.block([*body, *final]))
            case ast.Assign(targets=targets, value=value):
                result.then(self.expression(value))
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                result.then(self.expression(value))
                self._assign([target], value)
            case ast.AugAssign(target=target, value=value):
                result.then(self.expression(value))
                if self._is_input(value):
                    self.inputs |= names_in(target)
            case ast.Return(value=ast.expr() as value) | ast.Expr(value=value):
                result.then(self.expression(value))
        return result

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        part = self._part(value)
        for target in targets:
            if part is not None and isinstance(target, ast.Name):
                self.aliases[target.id] = part
            elif self._is_input(value):
                self.inputs |= names_in(target)

    def _loop(self, target: ast.expr, iterated: ast.expr) -> None:
        """``for i, block in enumerate(self.blocks)``: ``block`` is one of the parts."""
        match iterated, target:
            case ast.Call(func=func, args=[inner]), ast.Tuple(elts=[_, each]) if (
                last_name(func) == "enumerate"
            ):
                return self._loop(each, inner)
            case ast.Call(func=ast.Attribute(attr="items")), ast.Tuple(elts=[_, each]):
                target = each
            case ast.Call(func=func, args=given), ast.Tuple(elts=targets) if last_name(
                func
            ) == "zip" and len(given) == len(targets):
                for each, inner in zip(targets, given, strict=True):
                    self._loop(each, inner)
                return None
        found = [self._part(n) for n in walk(iterated) if isinstance(n, ast.Attribute)]
        parts = [part for part in found if part is not None]
        if parts:
            self.aliases |= dict.fromkeys(names_in(target), parts[0])
        elif self._is_input(iterated) and "range" not in ast.unparse(iterated):
            self.inputs |= names_in(target)
        return None

    def _usual(self, test: ast.expr) -> bool | None:
        """The usual answer to a test: ``embeds is None``, as ``**batch`` seldom has embeds."""
        match test:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[other]
            ) if is_none(other):
                is_given = name in self.given or name in self.reader.given.keywords
                if name in self.optional and not is_given:
                    return isinstance(op, ast.Is)
        return None

    # -- expressions ------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Parts:
        result = Parts()
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                result.then(self.expression(test))
                first, second = self.expression(body), self.expression(orelse)
                if self._is_input(test):
                    result.either(first, second)
                else:
                    result.then(first)
                    result.then(second)
                return result
            case ast.Call(func=func):
                result.then(self._call(node, func))
            case ast.BinOp(left=left, right=right):
                result.then(self._used([left, right]))
            case ast.Lambda():
                return result
        for child in children(node):
            if isinstance(child, ast.comprehension):
                self._loop(child.target, child.iter)
        for child in children(node):
            if isinstance(child, ast.expr):
                result.then(self.expression(child))
            elif isinstance(child, ast.keyword):
                result.then(self.expression(child.value))
            elif isinstance(child, ast.comprehension):
                result.then(self.expression(child.iter))
        return result

    def _call(self, call: ast.Call, func: ast.expr) -> Parts:
        result = Parts()
        used = [func]
        if isinstance(func, ast.Attribute):
            if func.attr in computing_methods.MODULE_API - {"forward"}:
                return result
            used.append(func.value)
        # F.linear(x, self.head.weight), checkpoint(self.block, x)
        if not (isinstance(func, ast.Name) and func.id in ASKING | computing_methods.AROUND):
            used += [a.value if isinstance(a, ast.Starred) else a for a in call.args]
        result.then(self._used(used))
        if isinstance(func, ast.Attribute):
            above = None
            match func.value:
                case ast.Name(id=name) if name == self.this:
                    pass
                case ast.Call(func=ast.Name(id="super")):
                    above = self.owner
                case _:
                    return result
            found = self.reader.methods.find(self.cls, func.attr, above)
            if found is not None:
                given = [place for place, a in enumerate(call.args) if self._is_input(a)]
                result.then(self.reader.function(self.cls, *found, self.seen, given))
        return result

    def _used(self, nodes: Sequence[ast.expr]) -> Parts:
        """The parts among some expressions."""
        result = Parts()
        for node in nodes:
            part = self._part(_owner(node))
            if part is not None:
                name, picked = part
                (result.perhaps if picked else result.always).add(name)
        return result

    def _part(self, node: ast.expr) -> tuple[str, bool] | None:
        """The part that an expression is, and whether an input picks it among others."""
        match node:
            case ast.Name(id=name):
                return self.aliases.get(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name == self.this:
                values = self.reader.study.values(node, self.module)
                return (attr, False) if self.reader.part(values) else None
            case ast.Subscript(value=inner, slice=index):
                part = self._part(inner)
                if part is None:
                    return None
                picks = self._is_input(index) and not self._is_parameter(inner)
                return part[0], part[1] or picks
        return None

    def _is_parameter(self, node: ast.expr) -> bool:
        """Whether an expression is one parameter, all of which is used where rows are taken."""
        values = self.reader.study.values(node, self.module)
        made = [v.made_by if isinstance(v, Made) else "" for v in values]
        return bool(made) and all(PARAMETER.match(name) for name in made)

    def _is_input(self, node: ast.AST) -> bool:
        """Whether the value of an expression may differ from step to step, and rank to rank."""
        if isinstance(node, ast.Attribute) and node.attr in FORM:
            return False
        if isinstance(node, ast.Name):
            return node.id in self.inputs
        if isinstance(node, ast.Call):
            if getattr(node.func, "id", "") in ASKING:
                return False
            if DRAWN.search(ast.unparse(node.func)):
                return True
        return any(self._is_input(child) for child in children(node))


def _owner(node: ast.expr) -> ast.expr:
    """``self.head`` of ``self.head.weight``."""
    if isinstance(node, ast.Attribute) and node.attr in computing_methods.LEAVES:
        return node.value
    return node


def _leaves(block: Sequence[ast.stmt]) -> str:
    """How a block ends, if it leaves: by an exception, or otherwise."""
    if not block:
        return ""
    if isinstance(block[-1], ast.Raise):
        return "raise"
    return "leaves" if isinstance(block[-1], (ast.Return, ast.Continue, ast.Break)) else ""
