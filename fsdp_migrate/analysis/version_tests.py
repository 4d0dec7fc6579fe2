"""What tests of torch's version say of every release that migrated code may run on.

A test counts when its answer is the same for every release from the target on, development and
local versions of it included: of two releases with the same numbers, nothing is said. What is not
understood says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.plain_functions import is_plain, returned_values
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.torch_versions import (
    DISTRIBUTION,
    MIRRORED,
    SIGNS,
    Answer,
    Given,
    Reading,
    Torch,
    agreed,
    answer_to,
    call_builtin,
    call_method,
    compare,
    item_of,
    join_answers,
    map_over,
    parse_version,
)
from fsdp_migrate.analysis.version_apis import (
    ASKING,
    DIGITS,
    call_of,
    is_digit_version,
    known_name,
    may_tell,
)
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Binding, Kind
from fsdp_migrate.syntax.trees import split_path, walk

Environment = Mapping[str, Reading]

DEEPEST = 8  # functions and names that are looked through
WITHOUT_EFFECT = frozenset({"isinstance", "issubclass", "hasattr", "len", "bool", "callable"})
NESTED = 40  # expressions in one another


class Reader:
    """Reads tests of torch's version.

    Names that something sets as attributes, in whatever file, tell nothing. To find these takes
    long, so a reader that is not ``strict`` believes all names, and asks one that is where they
    tell something.
    """

    def __init__(self, project: Project, target: Version, *, strict: bool = False) -> None:
        self.project = project
        self.target = target
        self.strict = strict
        self._depth = self._nested = 0
        self._named: dict[Binding, Reading] = {}
        self._answers = {} if strict else project.version_tests

    def answer(self, test: ast.expr, module: Module) -> Answer | None:
        """What a condition says for every release from the target on, if that is certain."""
        if test not in self._answers:
            read: Reading = self.read(test, module, {})
            if isinstance(read, Answer) and not self.strict:
                read = self._strictly.answer(test, module)
            self._answers[test] = read if isinstance(read, Answer) else None
        return self._answers[test]

    @cached_property
    def _strictly(self) -> Reader:
        return Reader(self.project, self.target, strict=True)

    def has_no_effect(self, test: ast.expr, module: Module) -> bool:
        """Whether a condition does nothing but tell: it may go once its answer is known."""
        waiting: list[ast.AST] = [test]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Call) and self._strictly.read(node, module, {}) is not None:
                continue
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") not in WITHOUT_EFFECT:
                return False
            if isinstance(node, (ast.Await, ast.NamedExpr)):
                return False
            waiting += ast.iter_child_nodes(node)
        return True

    def read(self, node: ast.expr, module: Module, env: Environment) -> Reading:
        """What an expression has of torch's version; ``env`` are the parameters it stands under."""
        if self._nested > NESTED:
            return None
        self._nested += 1
        read = self._read(node, module, env)
        self._nested -= 1
        return read

    def _read(self, node: ast.expr, module: Module, env: Environment) -> Reading:
        match node:
            case ast.Constant(value=value):
                return Given(value)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._listed(elements, module, env)
            case ast.Name(id=name) if name in env:
                return env[name]
            case ast.Name() | ast.Attribute():
                return self._named_by(node, module, env)
            case ast.Subscript(value=owner, slice=index):
                return item_of(self.read(owner, module, env), index)
            case ast.Call():
                return self._call(node, module, env)
            case ast.Compare():
                return self._compare(node, module, env)
            case ast.BoolOp(op=op, values=values):
                answers = [self.read(value, module, env) for value in values]
                return join_answers(answers, every=isinstance(op, ast.And))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                read = self.read(operand, module, env)
                return replace(read, holds=not read.holds) if isinstance(read, Answer) else None
            case ast.IfExp(body=body, orelse=orelse):
                test = self.read(node.test, module, env)
                if isinstance(test, Answer):
                    return self.read(body if test.holds else orelse, module, env)
                return agreed([self.read(body, module, env), self.read(orelse, module, env)])
            case (
                ast.GeneratorExp(elt=element, generators=[each])
                | ast.ListComp(elt=element, generators=[each])
            ) if isinstance(each.target, ast.Name) and not each.ifs:
                whole = self.read(each.iter, module, env)
                if isinstance(whole, Torch) and whole.form in {"words", "numbers"}:
                    one = replace(whole, form=whole.form[:-1], count=1)
                    read = self.read(element, module, {**env, each.target.id: one})
                    if isinstance(read, Torch) and read.form in {"word", "number"}:
                        return replace(whole, form=f"{read.form}s")
        return None

    def _listed(self, elements: Sequence[ast.expr], module: Module, env: Environment) -> Reading:
        read = [self.read(each, module, env) for each in elements]
        if read and all(isinstance(r, Given) and not r.parsed for r in read):
            return Given(tuple(r.value for r in read if isinstance(r, Given)))
        if read and all(
            isinstance(r, Torch) and r.form == "number" and r.first == i for i, r in enumerate(read)
        ):
            return Torch("numbers", 0, len(read))
        return None

    # -- names ----------------------------------------------------------------------------------

    def _outside(self, node: ast.expr, module: Module) -> frozenset[str]:
        """The names that an expression stands for by imports, if by nothing else."""
        imported = _is_bound_as(Kind.IMPORT, node, module)
        return self.project.imported(node, module) if imported else frozenset()

    def _named_by(
        self, node: ast.Name | ast.Attribute, module: Module, env: Environment
    ) -> Reading:
        head, _ = split_path(node)
        if head is not None and head.id not in env and _is_bound_as(Kind.PARAMETER, node, module):
            return None  # nothing is known of what callers give
        names = self._outside(node, module)
        if names:
            return agreed([known_name(name, self.target) for name in sorted(names)])
        bindings = self._bindings(node, module)
        if bindings:
            return self._surely(
                last_name(node),
                self._deeper(lambda: agreed([self._bound(b, m) for m, b in bindings])),
            )
        if isinstance(node, ast.Attribute):
            owner = self.read(node.value, module, env)
            if isinstance(owner, Torch) and owner.form == "version":
                return {
                    "base_version": Torch("plain"),
                    "public": Torch("plain"),
                    "release": Torch("numbers", 0, 3),
                    "major": Torch("number", 0, 1),
                    "minor": Torch("number", 1, 1),
                }.get(node.attr)
            if isinstance(owner, Torch) and owner == DISTRIBUTION and node.attr == "version":
                return Torch("plain")
        return None

    def _bindings(self, node: ast.expr, module: Module) -> list[tuple[Module, Binding]]:
        """What binds a name of the project, here or where it is imported from."""
        if isinstance(node, ast.Name):
            scope = module.table.scope_of(node).lookup(node.id)
            if scope is not None:
                return self._origins((module, each) for each in scope.bindings[node.id])
            return (
                self._origins(self.project.exports(module, node.id)) if module.table.stars else []
            )
        qualified = module.table.qualify(node) if _is_bound_as(Kind.IMPORT, node, module) else ()
        return [each for name in sorted(qualified) for each in self._imported(name, module)]

    def _origins(self, bindings: Iterable[tuple[Module, Binding]]) -> list[tuple[Module, Binding]]:
        """Bindings, those of imports followed to what binds the name in the other module."""
        found: list[tuple[Module, Binding]] = []
        for owner, binding in bindings:
            imports = binding.kind is Kind.IMPORT
            followed = self._imported(binding.qualified, owner) if imports else []
            found += followed or [(owner, binding)]
        return found

    def _imported(self, qualified: str, module: Module) -> list[tuple[Module, Binding]]:
        resolved = self.project.resolve(qualified, module)
        if resolved is None or not resolved[1] or "." in resolved[1] or self._depth > DEEPEST:
            return []
        self._depth += 1
        found = self._origins(self.project.exports(*resolved))
        self._depth -= 1
        return found

    def _bound(self, binding: Binding, module: Module) -> Reading:
        """What a name is by one of its bindings."""
        if binding.kind is Kind.IMPORT:
            names = self.project.canonical(binding.qualified, module)
            return agreed([known_name(name, self.target) for name in sorted(names)])
        if binding.kind is not Kind.ASSIGN or binding.value is None:
            return None
        if binding in self._named:
            return self._named[binding]
        self._named[binding] = None  # while it is asked for itself
        read = self.read(binding.value, module, {})
        for index in binding.unpack:
            read = item_of(read, ast.Constant(index))
        self._named[binding] = read
        return read

    def _deeper(self, find: Callable[[], Reading]) -> Reading:
        if self._depth > DEEPEST:
            return None
        self._depth += 1
        read = find()
        self._depth -= 1
        return read

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, node: ast.Call, module: Module, env: Environment) -> Reading:
        if any(isinstance(a, ast.Starred) for a in node.args):
            return None
        if isinstance(node.func, ast.Name) and node.func.id in WITHOUT_EFFECT - {"bool"}:
            return None
        owner = None
        if isinstance(node.func, ast.Attribute):
            owner = self.read(node.func.value, module, env)
        names = frozenset() if isinstance(owner, Torch) else self._outside(node.func, module)
        if not all(map(may_tell, names)):
            return None  # before its arguments are read
        given = [self.read(a, module, env) for a in node.args]
        if isinstance(node.func, ast.Attribute) and isinstance(owner, Torch):
            return call_method(owner, node.func.attr, given, self.target)
        if names:
            outside = partial(self._outside, module=module)
            return agreed(
                [call_of(name, node, given, outside, self.target) for name in sorted(names)]
            )
        match node.func:
            case ast.Name(id=name) if module.table.scope_of(node).lookup(name) is None:
                if name == "map" and len(node.args) == 2:
                    whole = given[1]
                    called = node.args[0]
                    if isinstance(called, ast.Name) and called.id in {"int", "str"}:
                        return map_over(whole, called.id)
                    return None
                if len(given) == 1 and not node.keywords:
                    return call_builtin(name, given[0])
                return None
        return self._own(node, given, module, env)

    def _own(
        self, node: ast.Call, given: Sequence[Reading], module: Module, env: Environment
    ) -> Reading:
        """What a call of a function of the project gives."""
        bindings = self._bindings(node.func, module)
        if not bindings or any(b.kind is not Kind.FUNCTION for _, b in bindings):
            return None
        if any(k.arg is None for k in node.keywords):
            return None
        named = {k.arg: self.read(k.value, module, env) for k in node.keywords if k.arg}
        found = []
        for owner, binding in bindings:
            function = binding.node
            if not isinstance(function, ast.FunctionDef) or function.decorator_list:
                return None
            found.append(self._result(function, given, named, owner))
        return self._surely(last_name(node.func), agreed(found))

    def _surely(self, name: str, read: Reading) -> Reading:
        """What was read of a name, unless something may set it from outside."""
        return None if self.strict and name in self.project.attributes_set else read

    def _result(
        self,
        function: ast.FunctionDef,
        given: Sequence[Reading],
        named: Mapping[str, Reading],
        module: Module,
    ) -> Reading:
        arguments = function.args
        if arguments.vararg or arguments.kwarg:
            return None
        if function.name == DIGITS and given and is_digit_version(function):
            return parse_version(given[0])
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        env: dict[str, Reading] = dict.fromkeys([*names, *(a.arg for a in arguments.kwonlyargs)])
        for name, default in zip(reversed(names), reversed(arguments.defaults), strict=False):
            env[name] = self.read(default, module, {})
        env |= {**dict(zip(names, given, strict=False)), **named}
        bindings = module.table.scopes[function].bindings
        for name in env:
            if any(b.kind is not Kind.PARAMETER for b in bindings.get(name, ())):
                env[name] = None
        if function.name == ASKING and len(names) == 2 and self._looks_at_torch(function, module):
            return answer_to(env[names[0]], env[names[1]], self.target)
        if not is_plain(function.body):
            return None
        returns = returned_values(function.body)
        if returns is None:
            return None
        return self._deeper(lambda: agreed([self.read(r, module, env) for r in returns]))

    def _looks_at_torch(self, function: ast.FunctionDef, module: Module) -> bool:
        return any(
            isinstance(self.read(n, module, {}), Torch)
            for n in walk(function)
            if isinstance(n, (ast.Name, ast.Attribute)) and n in module.table.within
        )

    # -- comparisons ----------------------------------------------------------------------------

    def _compare(self, node: ast.Compare, module: Module, env: Environment) -> Reading:
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return None
        left = self.read(node.left, module, env)
        if left is None and len(node.ops) == 1:
            return None
        sides = [left, *(self.read(side, module, env) for side in node.comparators)]
        answers: list[Reading] = []
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            sign = SIGNS.get(type(op), "")
            if isinstance(left, Torch) and isinstance(right, Given):
                answers.append(compare(left, sign, right, self.target))
            elif isinstance(left, Given) and isinstance(right, Torch) and sign in MIRRORED:
                answers.append(compare(right, MIRRORED[sign], left, self.target))
            else:
                answers.append(None)
        return join_answers(answers, every=True)


def _is_bound_as(kind: Kind, node: ast.expr, module: Module) -> bool:
    """Whether all that binds a name, or what a dotted one begins with, is of one kind."""
    head, _ = split_path(node)
    scope = module.table.scope_of(head).lookup(head.id) if head is not None else None
    if head is None or scope is None:
        return False
    return all(binding.kind is kind for binding in scope.bindings[head.id])
