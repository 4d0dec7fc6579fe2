"""Find every FSDP1 reference in a project and say what construct it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.name_resolution import TORCH
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.syntax import string_annotations, type_expressions
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS


def references(project: Project, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Every expression that stands for an FSDP1 name through imports, with that name.

    ``FSDP.state_dict_type`` comes once, as ``FullyShardedDataParallel.state_dict_type``.
    """
    possible = _possible_names(project, module)
    for name in module.table.names if possible else ():
        if name.id not in possible and not (possible and "*" in possible):
            continue
        if not isinstance(name.ctx, ast.Load):
            continue  # it gives the name another meaning
        chain: ast.expr = name
        parents = module.table.parents
        while isinstance(parent := parents[chain], ast.Attribute):
            chain = parent
        current: ast.expr = chain
        while True:
            found = {fsdp1.canonical(q) for q in project.external(current, module)} - {None}
            if found:
                canonical = sorted(f for f in found if f is not None)[0]
                yield _known_part(current, canonical)
                break
            if not isinstance(current, ast.Attribute):
                break
            current = current.value


def _known_part(node: ast.expr, canonical: str) -> tuple[ast.expr, str]:
    """Cut ``StateDictType.FULL_STATE_DICT.name`` down to the member, ``FSDP.x.y`` to ``FSDP.x``."""
    depth = 2 if canonical.split(".", maxsplit=1)[0] in {fsdp1.FSDP, *fsdp1.ENUMS} else 1
    if canonical.startswith(fsdp1.PRIVATE):
        return node, canonical
    parts = canonical.split(".")
    while len(parts) > depth and isinstance(node, ast.Attribute):
        parts.pop()
        node = node.value
    return node, ".".join(parts)


def _possible_names(project: Project, module: Module) -> frozenset[str]:
    """Local names through which FSDP1 may be reached."""
    found: set[str] = set()
    for binding in module.table.imports:
        for qualified in project.canonical(binding.qualified, module):
            leads_there = fsdp1.PACKAGE.startswith(f"{qualified}.") or qualified == fsdp1.PACKAGE
            if leads_there or fsdp1.canonical(qualified) or fsdp1.is_module(qualified):
                found.add(binding.name)
    if not project.lent.isdisjoint(module.table.attributes_by_name.names):
        for binding in module.table.imports:
            resolved = project.resolve(binding.qualified, module)
            if resolved is not None and not resolved[1]:  # ``wrapping.FSDP`` of ``wrapping.py``
                found.add(binding.name)
    found |= _aliases(project, module)
    if module.table.stars:
        found.add("*")
    if module.mentions(TORCH):
        found.add(TORCH)  # which an excerpt may have from elsewhere
    return frozenset(found)


def _aliases(project: Project, module: Module) -> set[str]:
    """Local names through which the project's own names for FSDP1's class may be reached."""
    if not project.aliases:
        return set()
    table = module.table
    found = {
        binding.name
        for binding in project.aliases
        if binding.scope is table.scopes.get(binding.scope.node, table.module)
    }
    for binding in table.imports:
        outer = project.aliased(binding.qualified, module)
        if any(fsdp1.canonical(name) == fsdp1.FSDP for name in outer):
            found.add(binding.name)
    names = {binding.name for binding in project.aliases}
    for node in table.attributes:
        head: ast.expr = node
        while node.attr in names and isinstance(head, ast.Attribute):
            head = head.value
        if isinstance(head, ast.Name):
            found.add(head.id)
    return found


def lent(project: Project) -> frozenset[str] | None:
    """Names by which files that do not mention FSDP have parts of FSDP1 from those that do.

    None when they may have any name: a file hands on all that a module of torch's has.
    """
    names: set[str] = set()
    rest: list[Module] = []
    for module in project.modules:
        if not module.mentions(*fsdp1.WORDS):
            rest.append(module)
            continue
        stars = (star for _, star in module.table.stars if star.startswith("torch"))
        if any(project.resolve(star, module) is None for star in stars):
            return None
        for binding in module.table.imports:
            for qualified in project.canonical(binding.qualified, module):
                if fsdp1.canonical(qualified) or fsdp1.is_module(qualified):
                    names.add(binding.name)
    names.update(binding.name for binding in project.aliases)
    known = 0
    while known < len(names):  # they may be handed on under further names
        known = len(names)
        for module in rest:
            for binding in module.table.imports:
                if not names.isdisjoint(binding.qualified.split(".")):
                    names.add(binding.name)
    return frozenset(names)


def is_imported(project: Project) -> bool:
    """Whether something of the project imports ``torch.distributed.fsdp``, or a part of it.

    FSDP2's names count as well: what a run left in a migrated project is found again.
    """
    for module in project.modules:
        if not module.mentions(*fsdp1.WORDS):
            continue
        qualified = {binding.qualified for binding in module.table.imports}
        qualified.update(f"{star}.{fsdp1.FSDP}" for _, star in module.table.stars)
        if any(map(fsdp1.is_in_package, qualified)):
            return True
        outside = {each for name in qualified for each in project.canonical(name, module)}
        if any(map(fsdp1.is_in_package, outside)):
            return True
    return False


def borrows(module: Module, lent: frozenset[str]) -> bool:
    """Whether a file may use one of the names that others lend."""
    table = module.table
    if table.stars or not lent.isdisjoint(table.attributes_by_name.names):
        return True
    return any(not lent.isdisjoint(b.qualified.split(".")) for b in table.imports)


def classify(module: Module, node: ast.expr, canonical: str) -> Site:
    """The site a reference belongs to."""
    table = module.table
    parent = table.parents[node]
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return Site(Construct(ConstructKind.REPLACED, canonical), module, node, node)
    named = Construct.parse(canonical)
    if named.attribute in fsdp1.OF_MODELS:
        # ``FSDP.state_dict(model)``: rules know the method by the model it is called on.
        return Site(Construct(ConstructKind.UNBOUND, canonical), module, call or node, node)
    if call is not None:
        made = Construct(ConstructKind.CONSTRUCTOR, canonical)
        return Site(made if canonical == fsdp1.FSDP else named, module, call, node)
    if type_expressions.is_type(node, table):
        return Site(Construct(ConstructKind.ANNOTATION, canonical), module, node, node)
    check = _type_check(module, node)
    if check is not None:
        return Site(Construct(ConstructKind.ISINSTANCE, canonical), module, check, node)
    if canonical == fsdp1.FSDP and isinstance(parent, (ast.MatchClass, ast.MatchValue)):
        return Site(Construct(ConstructKind.MATCHED, canonical), module, node, node)
    if isinstance(parent, ast.ClassDef):
        return Site(Construct(ConstructKind.CLASS, canonical), module, parent, node)
    if isinstance(parent, ast.Call) and parent.args[:1] == [node] and _is_partial(parent):
        bound = Construct(ConstructKind.PARTIAL, canonical)
        return Site(bound if canonical == fsdp1.FSDP else named, module, parent, node)
    if canonical == fsdp1.FSDP and is_tested(node, module):
        return Site(Construct(ConstructKind.TESTED, canonical), module, node, node)
    if canonical == fsdp1.FSDP and isinstance(parent, ast.Compare):
        return Site(Construct(ConstructKind.COMPARED, canonical), module, parent, node)
    if canonical == fsdp1.FSDP and unwrapping.listed_for(node, module):
        return Site(Construct(ConstructKind.LISTED, canonical), module, node, node)
    if canonical == fsdp1.FSDP:
        return Site(Construct(ConstructKind.VALUE, canonical), module, node, node)
    return Site(named, module, node, node)


def is_tested(node: ast.expr, module: Module) -> bool:
    """Whether a name is only asked whether it is there: ``FSDP is None``, ``x if FSDP else y``."""
    match module.table.parents[node]:
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return test is node
        case ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="bool")):
            return True
        case ast.Compare(left=left, comparators=[right]):
            other = right if left is node else left
            return isinstance(other, ast.Constant) and other.value is None
        case ast.BoolOp(op=op, values=values) as both:
            handed_on = isinstance(op, ast.Or) or values[-1] is node
            return not handed_on or is_tested(both, module)
    return False


def of_alias(site: Site, project: Project) -> Site | None:
    """``site``, with regard to the project's own names for FSDP1's class.

    Such a name is a type where it is made, and types and messages written with it follow it.
    """
    if not project.aliases:
        return site
    noted = isinstance(site.module.table.parents[site.node], ast.FormattedValue)
    if site.construct.kind is ConstructKind.ANNOTATION or noted:
        return site if project.imported(site.mention, site.module) else None
    made = {binding.value for binding in project.aliases}
    if site.mention in made:
        return Site(
            Construct(ConstructKind.ANNOTATION, fsdp1.FSDP), site.module, site.node, site.mention
        )
    return site


def _is_partial(call: ast.Call) -> bool:
    return last_name(call.func) == "partial"


def _type_check(module: Module, node: ast.expr) -> ast.Call | None:
    """The ``isinstance`` or ``issubclass`` call whose class argument holds ``node``."""
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.Tuple, ast.BinOp)):
            child = parent
            continue
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            is_check = parent.func.id in {"isinstance", "issubclass"}
            if is_check and len(parent.args) == 2 and parent.args[1] is child:
                return parent
        return None
    return None


def dead_imports(project: Project, module: Module, used: set[ast.AST]) -> Iterator[Site]:
    """FSDP1 names that are imported and never used in the module, or used where no code tells.

    They are still references: another module may import them from here, ``__all__`` offers them, or
    a type comment names them.
    """
    offered = promised(module) | string_annotations.in_type_comments(module.source)
    in_strings = {n for each in string_annotations.in_annotations(module.table) for n in each.names}
    for binding in module.table.imports:
        alias, canonical = binding.node, fsdp1.canonical(binding.qualified)
        if not isinstance(alias, ast.alias) or not canonical:
            continue
        if reaching_bindings.is_attribute(binding, module):
            continue
        uses = [n for n in reaching_bindings.uses(binding, module) if isinstance(n.ctx, ast.Load)]
        if (not uses and binding.name not in in_strings) or binding.name in offered:
            yield Site(Construct(ConstructKind.IMPORT, canonical), module, alias, alias)


def promised(module: Module) -> frozenset[str]:
    """The names that ``__all__`` lists."""
    listed = module.table.module.bindings.get("__all__", [])
    return frozenset(
        n.value
        for binding in listed
        if binding.value is not None
        for n in ast.walk(binding.value)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def enclosing_function(module: Module, node: ast.AST) -> ast.AST:
    """The innermost function around ``node``, or the module."""
    parents = module.table.parents
    while node in parents:
        node = parents[node]
        if type(node) in FUNCTIONS:
            return node
    return module.source.tree
