"""What names are: the definitions that reach them, imports followed from module to module."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis import executed_files
from fsdp_migrate.analysis.flow import ELSEWHERE, Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.reaching_bindings import when_it_runs
from fsdp_migrate.analysis.tracing.branches_taken import BranchesTaken
from fsdp_migrate.analysis.tracing.containers import Containers
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.sequences import Sequences
from fsdp_migrate.analysis.values import (
    NOWHERE,
    Class,
    Constant,
    External,
    Frame,
    Function,
    Generated,
    Made,
    ModuleValue,
    Unknown,
    Value,
)
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, last_part


class Names:
    """Follows names and dotted paths to what defines them."""

    def __init__(
        self,
        tracer: Evaluator,
        containers: Containers,
        sequences: Sequences,
        branches: BranchesTaken,
    ) -> None:
        self.tracer = tracer
        self.branches = branches
        self.evaluate = tracer.evaluate
        self.containers = containers
        self.if_nothing = containers.answers.if_nothing
        self.sequences = sequences
        self._importing: set[tuple[Module, str]] = set()

    def path(
        self, node: ast.Name | ast.Attribute | ast.Subscript, module: Module, frame: Frame | None
    ) -> list[Value]:
        """Follow the definitions that reach a name or a dotted path in its own scope."""
        scope = module.table.scope_of(node)
        here = scope.home()
        # Flows are dear: that of a scope is asked for only if something in it defines the path.
        if isinstance(node, ast.Name):
            if scope.is_free(node.id):
                return self._free(node, scope, here, module, frame)
        elif last_part(node) not in module.table.written.get(here, ()):
            return []
        reaching = module.flow(here).reaching.get(node)
        result: list[Value] = []
        if reaching:
            passed = [d for d in reaching if self.branches.passes_by(frame, d.node, module)]
            for definition in reaching:
                if definition is not ELSEWHERE and definition not in passed:
                    result += self.defined(definition, here, module, frame, node)
            if len(passed) == len(reaching):
                return []
            if ELSEWHERE in reaching and isinstance(node, ast.Attribute):
                result += self.tracer.attribute_at(node, module, frame)
            return result or self.if_nothing(
                Unknown(node, module, frame, "it is never given a value")
            )
        if isinstance(node, ast.Name):
            return self._free(node, scope, here, module, frame)
        return []

    def _free(
        self, node: ast.Name, scope: Scope, here: Scope, module: Module, frame: Frame | None
    ) -> list[Value]:
        """A name no definition of its own scope reaches: enclosing scopes, module, builtins."""
        owner = scope.lookup(node.id)
        if owner is None:
            return self._starred(node, module)
        if owner is module.table.module:
            return [
                *self._module_level(module, node.id, node),
                *self._before_the_end(node, here, module),
            ]
        if owner is here:
            return [Unknown(node, module, frame, f"{node.id} may be unbound here")]
        result: list[Value] = []
        for definition in module.defined_in(owner, node.id):
            # The enclosing call is not the one in frame unless frames nest lexically.
            enclosing = _frame_of(owner.home().node, frame)
            result += self.defined(definition, owner.home(), module, enclosing)
        why = f"{node.id} is never given a value"
        return result or self.if_nothing(Unknown(node, module, frame, why))

    def _starred(self, node: ast.Name, module: Module) -> list[Value]:
        """A name that the module does not bind itself: from a star import, or a builtin."""
        result: list[Value] = []
        for _, star in module.table.stars:
            resolved = self.tracer.project.resolve(star, module)
            if resolved is not None and not resolved[1]:
                result += self.member(resolved[0], node.id, node, module)
        if result:
            return result
        if hasattr(builtins, node.id):
            return [External(node, module, name=f"builtins.{node.id}")]
        for _, star in module.table.stars:
            if self.tracer.project.resolve(star, module) is None:
                return [External(node, module, name=f"{star}.{node.id}")]
        return [Unknown(node, module, why=f"{node.id} is not defined")]

    def _module_level(self, module: Module, name: str, node: ast.AST) -> list[Value]:
        """What a name of a module is when the module has run."""
        top = module.table.module
        final = module.flow(top).final.get(name)
        definitions = list(final) if final else []
        known = {d.node for d in definitions}
        result: list[Value] = []
        for definition in definitions:
            result += self.defined(definition, top, module, None)
        for binding in top.bindings.get(name, []):
            # ``global name`` inside functions binds here too, and no flow of the module sees it.
            if binding.node not in known and _is_global_store(binding, module):
                result += self.from_binding(binding, module)
        return result or self.if_nothing(
            Unknown(node, module, why=f"{name} is never given a value")
        )

    def _before_the_end(self, name: ast.Name, here: Scope, module: Module) -> Iterator[Value]:
        """What a function finds in a name of its module that is given something else later on: the
        module may call it in between."""
        top = module.table.module
        every = top.bindings[name.id]
        if len(every) < 2 or here is top:
            return
        at_end = {d.node for d in module.flow(top).final.get(name.id, ())}
        for binding in when_it_runs(name, every, top, module):
            if binding.node not in at_end and not _is_global_store(binding, module):
                yield from self.from_binding(binding, module)

    def from_binding(self, binding: Binding, module: Module) -> list[Value]:
        """What one binding makes of its name."""
        definition = Definition(
            binding.name, binding.kind, binding.node, binding.value, binding.unpack
        )
        return self.defined(definition, binding.scope, module, None)

    def member(self, module: Module, name: str, node: ast.AST, importer: Module) -> list[Value]:
        """``name`` looked up in a module of the project, as ``from module import name`` does."""
        if (module, name) in self._importing:  # a package that imports the name from itself
            return []
        result: list[Value] = []
        self._importing.add((module, name))
        for owner, binding in self.tracer.project.exports(module, name):
            if binding.kind is Kind.IMPORT:
                result += self._imported(binding.qualified, node, owner, importer)
            else:
                result += self._module_level(owner, name, node)
                break
        self._importing.discard((module, name))
        if not result:
            submodule = self.tracer.project.find(f"{module.name}.{name}", importer)
            if submodule is not None:
                return [ModuleValue(node, importer, target=submodule)]
        return result

    def _imported(self, qualified: str, node: ast.AST, module: Module, user: Module) -> list[Value]:
        """The value of an absolute dotted import path, as seen from ``module``."""
        resolved = self.tracer.project.resolve(qualified, module)
        if resolved is None:
            return [External(node, user, name=qualified)]
        target, rest = resolved
        if not rest:
            return [ModuleValue(node, user, target=target)]
        head, _, tail = rest.partition(".")
        found = self.member(target, head, node, module)
        for part in tail.split(".") if tail else []:
            found = [
                v for value in found for v in self.tracer.attribute_of(value, part, node, user)
            ]
        if found:
            return found
        outside = self.tracer.project.canonical(qualified, module)
        if outside:
            return [External(node, user, name=name) for name in sorted(outside)]
        return [Unknown(node, user, why=f"{qualified}{NOWHERE}")]

    def defined(
        self,
        definition: Definition,
        scope: Scope,
        module: Module,
        frame: Frame | None,
        used: ast.expr | None = None,
    ) -> list[Value]:
        """What one definition makes of its path, where it is ``used``."""
        node = definition.node
        if node in self.tracer.outdated:
            return []
        by_text = self._set_by_text(definition, scope, module, used)
        match definition.kind:
            case Kind.IMPORT:
                binding = module.table.imported_by[node, definition.path]
                found = self._imported(binding.qualified, node, module, module)
                is_variable = self._are_of_variable(found, binding, module)
                return [*found, *by_text] if is_variable else found
            case Kind.FUNCTION:
                assert isinstance(node, FUNCTIONS)
                return [Function(node, module, frame), *by_text]
            case Kind.CLASS:
                assert isinstance(node, ast.ClassDef)
                return [Class(node, module), *by_text]
            case Kind.PARAMETER:
                assert isinstance(node, ast.arg)
                return self.tracer.parameter(node, scope, module, frame, used)
            case Kind.ASSIGN if definition.value is not None:
                values = self.evaluate(definition.value, module, frame)
                found = self._unpacked(values, definition, module, frame)
                return [*found, *by_text]
            case Kind.ENTER if definition.value is not None:
                entered = self.entered(definition.value, module, frame)
                if entered is not None:
                    return self._unpacked(entered, definition, module, frame)
            case Kind.ELEMENT if definition.value is not None:
                return self.containers.elements(definition, module, frame)
        why = {
            Kind.DELETE: "it was deleted",
            Kind.AUGMENT: "it is updated in place",
            Kind.ENTER: "it comes from a context manager",
        }.get(definition.kind, "its value is not written in the source")
        return [Unknown(definition.value or node, module, frame, why)]

    def _are_of_variable(self, found: list[Value], binding: Binding, module: Module) -> bool:
        """Whether what an import gives is the value of a variable of the project."""
        if (
            not module.setting_names
            or self.tracer.project.resolve(binding.qualified, module) is None
        ):
            return False
        return not any(isinstance(v, (Class, Function, ModuleValue)) for v in found)

    def _set_by_text(
        self, definition: Definition, scope: Scope, module: Module, used: ast.expr | None
    ) -> Iterator[Value]:
        """What a name of a module may become by text that is executed, as nanoGPT's do."""
        if scope is not module.table.module:
            return
        given, project = definition.value or definition.node, self.tracer.project
        call = executed_files.setter(definition.path, given, module, project, used)
        if call is not None:
            why = f"{ast.unparse(call.func)}() may give it another value"
            yield Unknown(given, module, why=why)

    def entered(self, manager: ast.expr, module: Module, frame: Frame | None) -> list[Value] | None:
        """What ``with manager as name`` binds: what ``nullcontext`` is given, a generator function
        yields, or ``__enter__`` of the project's own class returns; None of other managers."""
        result: list[Value] = []
        for value in self.evaluate(manager, module, frame):
            found = self._bound_by(value, manager, module)
            if found is None:
                return None
            result += found
        return result or None

    def _bound_by(self, value: Value, manager: ast.expr, module: Module) -> list[Value] | None:
        """As :meth:`entered`, of one of the values of a manager."""
        given: list[tuple[ast.expr | None, Module, Frame | None]]
        match value:
            case Made(made_by="contextlib.nullcontext", node=ast.Call(args=[inner])):
                given = [(inner, value.module, value.frame)]
            case Generated(function=function, inside=inside):
                given = [(each.value, function.module, inside) for each in value.yields]
            case Made(callee=Class()):
                methods = self.tracer.attribute_of(value, "__enter__", manager, module)
                returned = [(m.module.table.returns.get(m.node, ()), m.module) for m in methods]
                given = [(each.value, where, None) for found, where in returned for each in found]
                if methods and not given:
                    return [Constant(manager, module, None, None)]
            case _:
                return None
        return [
            found
            for node, where, inside in given
            if node is not None
            for found in self.evaluate(node, where, inside)
        ]

    def _unpacked(
        self, values: Iterable[Value], definition: Definition, module: Module, frame: Frame | None
    ) -> list[Value]:
        """The elements that a definition takes out of values: ``_, b = values``."""
        current = list(values)
        for index in definition.unpack:
            following: list[Value] = []
            for value in current:
                part = self.sequences.part(value, index) or self.containers.unpacked_models(value)
                origin = definition.value or definition.node
                why = "it is one part of an unpacked value"
                following += part or self.if_nothing(Unknown(origin, module, frame, why))
            current = following
        return current


def _is_global_store(binding: Binding, module: Module) -> bool:
    """Bound by a statement inside a function through ``global``."""
    return module.table.scope_of(binding.node).function() is not None


def _frame_of(function: ast.AST, frame: Frame | None) -> Frame | None:
    """The call of ``function`` among a frame and those that it was made in."""
    while frame is not None and frame.function is not function:
        frame = frame.parent
    return frame
