"""One function that shards the models of several constructors, which take the same arguments out
of a dictionary: ``model = shard_model(model, fsdp_kwargs)``.

It stands behind the function that makes the dictionary, and is called where that is called.
"""

from __future__ import annotations

import ast
import textwrap

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.dictionary_entries import DIFFERENT
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.rendering import set_apart, statements
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import of_kind, present

NAME = "shard_model"


def write(plan: ShardPlan) -> str:
    """Call the function in the place of a constructor, and write it where that is the first to do
    so; or say why it cannot be written."""
    constructor, dictionary = plan.constructor, present(plan.constructor.dictionary)
    home, statement = present(plan.place)
    text, nodes = _body(plan)
    if nodes:
        return f"{ast.unparse(nodes[0])} is known at the call alone"
    if dictionary.written is None:
        name = plan.proposal.namer.fresh(home, [home.table.module], NAME)
        dictionary.written = {name: text}
        parameters = join(", ", plan.parameters).preview()
        maker = getattr(statement, "name", "")
        said = f'"""Shard a model in place, with the settings that {maker}() makes."""'
        body = textwrap.indent(f"{said}\n{text}", "    ")
        plan.proposal.define(home, statement, code("{f}", f=f"def {name}({parameters}):\n{body}"))
    [(name, written)] = dictionary.written.items()
    if written != text:
        return DIFFERENT
    function = _called(name, plan, home)
    given = [code("{m}", m=constructor.wrapped), code("{d}", d=present(constructor.spread))]
    call = code("{f}({g})", f=function, g=join(", ", given))
    plan.proposal.replace(constructor.module, constructor.call, call)
    return ""


def _body(plan: ShardPlan) -> tuple[str, list[ast.expr]]:
    """The statements of the function, and the expressions of the caller's that are in them."""
    lines, call, after = statements(plan)
    if after and not plan.is_bare:
        lines += [call, *after, code("return {m}", m=plan.model)]
    else:
        lines += [*after, code("return {c}", c=call)]
    nodes: list[ast.expr] = []
    return "\n".join(line.flatten(nodes) for line in set_apart(lines)), nodes


def _called(name: str, plan: ShardPlan, home: Module) -> str:
    """How a caller writes the function: it has that which makes the dictionary already."""
    constructor = plan.constructor
    if constructor.module is home:
        return name
    maker, module = present(constructor.maker).func, constructor.module
    if isinstance(maker, ast.Attribute):
        return f"{ast.unparse(maker.value)}.{name}"
    statement = present(import_of(maker, module))
    source = "." * statement.level + (statement.module or "")
    if module.table.scope_of(statement) is module.table.module:
        return plan.proposal.name(module, source, name, maker)
    imported = present(constructor.dictionary).imported
    if statement not in imported:
        imported.add(statement)
        line = code("from {s} import {n}", s=source, n=name)
        plan.proposal.insert_after(module, statement, line)
    return name


def import_of(maker: ast.expr, module: Module) -> ast.ImportFrom | None:
    """The statement that imports a name, as it is, from its module; None of others."""
    table = module.table
    called = of_kind(maker, ast.Name)
    scope = table.within[called].lookup(called.id)
    match scope.bindings[called.id] if scope is not None else ():
        case [binding] if isinstance(binding.node, ast.alias) and binding.node.asname is None:
            statement = table.statement(binding.node)
            return statement if isinstance(statement, ast.ImportFrom) else None
    return None
