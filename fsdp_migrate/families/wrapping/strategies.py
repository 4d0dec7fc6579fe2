"""Which sharding strategies an expression may be: one, or a choice of several that are in sight.

A choice is a condition, a table by name, ``ShardingStrategy[name]`` for a name that the command
line has a list of, a local variable for one of these, or a parameter of a function. Each is read
for nothing but constructors, so that what they are in FSDP2 can stand in their place.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, External, Value
from fsdp_migrate.families.wrapping import command_line, mesh_strategies, passed_arguments, tables
from fsdp_migrate.families.wrapping.assigned_strategies import can_be_assigned
from fsdp_migrate.families.wrapping.evaluation_scripts import only_evaluates
from fsdp_migrate.families.wrapping.passed_arguments import Parameter
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import method_of, of_kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS, block_of

ENUM = "ShardingStrategy"
RESHARD = "reshard_after_forward"
# True makes the root reshard as well since then; None is the default.
NONE_IS_DEFAULT = Version("2.8")
RESHARD_NEVER = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
# Earlier releases reduce-scatter over a group of one with AVG, which torch's comments distrust.
CLEAN_REPLICATION = Version("2.10")
HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
OVER_ALL = frozenset({"FULL_SHARD", "SHARD_GRAD_OP"})  # of which every rank holds a part
MEMBERS = frozenset({*OVER_ALL, "NO_SHARD", *HYBRID})


def member(value: Value) -> str | None:
    """The strategy's name, ``FULL_SHARD`` for None, or None when it is not one member."""
    if isinstance(value, Constant) and value.value is None:
        return "FULL_SHARD"
    if isinstance(value, External):
        name = fsdp1.canonical(value.name) or ""
        found = name.removeprefix(f"{ENUM}.")
        return found if found in MEMBERS else None
    return None


def is_enum(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is the class of the strategies."""
    return {fsdp1.canonical(name) for name in study.external(node, module)} == {ENUM}


def strategy_of(constructor: Constructor, study: Study) -> str | None:
    """The strategy of a constructor when it is written at the call, or is all that a variable for
    it is assigned; None when it varies."""
    node = constructor.arguments.get("sharding_strategy")
    if node is None:
        return None if constructor.is_open else "FULL_SHARD"
    given, _ = _given(constructor, study)
    found = _written(given[0], constructor.module, study) if len(given) == 1 else None
    is_certain = found == "FULL_SHARD" or not constructor.may_lack("sharding_strategy")
    return found if is_certain else None


def _given(constructor: Constructor, study: Study) -> tuple[list[ast.expr], list[ast.Name]]:
    """What the argument may be, and the names of the variable that takes it there."""
    values = constructor.values("sharding_strategy")
    if len(values) > 1:
        return values, []
    return tables.assigned(values[0], constructor.module, study) or (values, [])


def _written(node: ast.expr, module: Module, study: Study) -> str | None:
    """The strategy that is written at a place, or wherever what is taken out there is put in:
    there, a mesh that hybrid sharding makes where none is given may be missing."""
    taken = node in study.tracer.stands_for
    direct = taken or isinstance(node, ast.Constant) or study.external(node, module)
    if not direct:
        return None
    found = {member(v) for v in study.values(node, module)}
    if len(found) != 1 or (taken and found & HYBRID):
        return None
    return found.pop()


def strategies_of(constructor: Constructor, study: Study) -> frozenset[str]:
    """The strategies that a constructor chooses from, or none if they are not all in sight."""
    certain = strategy_of(constructor, study)
    if certain is not None:
        return frozenset({certain})
    choice = read_choice(constructor, study)
    return frozenset() if choice is None else choice.strategies


def possible(constructor: Constructor, study: Study) -> frozenset[str]:
    """The strategies that a constructor may have: where not all are in sight, those that the
    project speaks of."""
    known = strategies_of(constructor, study)
    return known or frozenset(name for name in MEMBERS if study.project.mentions(name))


def doubt(names: Set[str], module: Module, study: Study) -> str:
    """What has to be judged if one of the strategies leaves every rank all of a model: a script
    that only evaluates it reduces nothing."""
    if "NO_SHARD" not in names or study.target >= CLEAN_REPLICATION:
        return ""
    if only_evaluates(module, study):
        return ""
    return (
        f"NO_SHARD became a (world_size, 1) mesh: before {CLEAN_REPLICATION} NCCL may "
        "reduce wrongly over the one rank that shards, which DDP does not"
    )


def may_reshard_never(study: Study) -> bool:
    """Whether the project names a strategy of ``RESHARD_NEVER``, or may choose one by its name or
    number."""
    words = RESHARD_NEVER | {"ShardingStrategy[", "ShardingStrategy(", "getattr(ShardingStrategy"}
    return study.project.library.speaks_of(*words) or any(
        any(word in module.source.text for word in words)
        for module in study.project.modules
        if module.mentions("ShardingStrategy", *RESHARD_NEVER)
    )


def is_over_all(constructor: Constructor, study: Study) -> bool:
    """Whether the strategy certainly is one that shards over all ranks."""
    found = strategies_of(constructor, study)
    return bool(found) and found <= OVER_ALL


def is_of_all_ranks(constructor: Constructor, study: Study) -> bool:
    """Whether the model certainly belongs to all ranks, each of which has a part of it, or all."""
    found: set[str | None] = set(strategies_of(constructor, study))
    if not found and constructor.has("sharding_strategy"):
        node = constructor.arguments["sharding_strategy"]
        found = {member(value) for value in study.values(node, constructor.module)}
    return bool(found) and found <= {*OVER_ALL, "NO_SHARD"}


def is_replicated(models: frozenset[Constructor], study: Study) -> bool:
    """Whether every rank has all of the models, as far as their strategies are written."""
    return {strategy_of(model, study) for model in models} == {"NO_SHARD"}


# -- strategies to choose from ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rows:
    """What is looked up by a key: a strategy for each."""

    key: ast.expr
    strategies: dict[object, str]
    module: Module  # where they are written
    table: ast.Dict | None = None  # that stands elsewhere, and has a name


@dataclass(eq=False)
class Choice:
    """Several strategies, as an expression that can say ``reshard_after_forward``.

    ``mentions`` are the expressions that name a strategy, each with its file. ``names`` are those
    of the variable that takes the choice to the constructor, and ``given`` what that is assigned.
    ``by_name`` are the lookups ``ShardingStrategy[name]``, ``functions`` those that return one of
    these, ``parameters`` the names of parameters that callers give one of these. A call that may
    lack the argument chooses FULL_SHARD as well.
    """

    given: list[ast.expr]
    names: list[ast.Name]
    mentions: dict[ast.expr, tuple[str, Module]] = field(default_factory=dict)
    lookups: dict[ast.expr, Rows] = field(default_factory=dict)
    by_name: dict[ast.expr, Rows] = field(default_factory=dict)
    functions: dict[ast.FunctionDef, Module] = field(default_factory=dict)
    parameters: dict[ast.expr, Parameter] = field(default_factory=dict)
    may_be_lacking: bool = False

    @property
    def strategies(self) -> frozenset[str]:
        rows = (*self.lookups.values(), *self.by_name.values())
        looked_up = {name for each in rows for name in each.strategies.values()}
        default = {"FULL_SHARD"} if self.may_be_lacking else set()
        return frozenset({*looked_up, *default, *(name for name, _ in self.mentions.values())})

    @property
    def is_full_by_name(self) -> bool:
        """Whether the argument asks for a strategy by its name, and all of them reshard."""
        chosen = self.mentions or self.names or self.functions or self.parameters
        return not (chosen or self.strategies & RESHARD_NEVER)

    @property
    def is_written_where_assigned(self) -> bool:
        """Whether a variable is assigned the strategies themselves, of which some need a mesh."""
        others = self.lookups or self.by_name or self.functions or self.parameters
        mixed = bool(self.strategies - OVER_ALL) and not self.may_be_lacking
        return mixed and bool(self.names) and not others

    @property
    def is_of_groups(self) -> bool:
        """Whether it is written in places of a dictionary, of which some need groups."""
        others = self.names or self.lookups or self.by_name or self.functions or self.parameters
        return not others and bool(self.strategies & HYBRID)

    @property
    def rows(self) -> Rows | None:
        """What the whole of the choice is looked up in."""
        only = self.given[0] if len(self.given) == 1 else None
        return {**self.lookups, **self.by_name}.get(only) if only is not None else None


def read_choice(constructor: Constructor, study: Study) -> Choice | None:
    """What a constructor chooses from: ``SHARD_GRAD_OP if args.zero2 else FULL_SHARD``.

    Strategies that need a mesh are only read where a condition can say when: in a lookup.
    """
    choice = _read(constructor, study)
    if choice is None:
        return None
    named = [rows.table for rows in choice.lookups.values() if rows.table is not None]
    if not all(tables.is_for(table, "sharding_strategy", study) for table in named):
        return None
    if choice.strategies <= OVER_ALL or _are_of_mesh(choice, constructor):
        return choice
    if choice.is_of_groups:
        return choice if _are_beside_groups(choice, constructor) else None
    rows = choice.rows
    needs_units = bool(choice.strategies & HYBRID) and not constructor.has("auto_wrap_policy")
    if not needs_units and choice.is_written_where_assigned:
        return choice if can_be_assigned(choice.names, constructor, study) else None
    if rows is None or access_path(rows.key) is None:
        return None
    if not says_the_same(rows.key, constructor, choice.names):
        return None
    is_placed = constructor.has("device_mesh") or constructor.has("process_group")
    return None if is_placed or choice.may_be_lacking else choice


def _are_of_mesh(choice: Choice, constructor: Constructor) -> bool:
    """Whether a function chooses the strategies for the mesh that the constructor has as well."""
    others = choice.lookups or choice.by_name or choice.parameters or choice.may_be_lacking
    if len(choice.functions) != 1 or others:
        return False
    ((function, home),) = choice.functions.items()
    calls = [leaf for each in choice.given for leaf in tables.leaves(each)]
    written = {leaf: name for leaf, (name, _) in choice.mentions.items()}
    return mesh_strategies.are_of_mesh(written, function, home, calls, constructor)


def _are_beside_groups(choice: Choice, constructor: Constructor) -> bool:
    """Whether a dictionary has a hybrid strategy where it has process groups as well, and nowhere
    else: the mesh is made of these there, and the others shard over all ranks."""
    entries = constructor.entries
    parents = constructor.module.table.parents
    groups, hybrid = [], []
    for entry in entries:
        block = block_of(parents[entry.statement], entry.statement)
        if entry.name == "process_group":
            groups.append(block)
        elif choice.mentions.get(entry.value, ("",))[0] in HYBRID:
            hybrid.append(block)
    same = all(block in groups for block in hybrid) and all(block in hybrid for block in groups)
    return (
        same and choice.strategies <= OVER_ALL | HYBRID and set(choice.given) <= {*choice.mentions}
    )


def _read(constructor: Constructor, study: Study) -> Choice | None:
    module = constructor.module
    if "sharding_strategy" not in constructor.arguments:
        return None
    given, names = _given(constructor, study)
    choice = Choice(given, names, may_be_lacking=constructor.may_lack("sharding_strategy"))
    for expression in given:
        for leaf in tables.leaves(expression):
            if not _read_leaf(leaf, module, choice, study):
                return None
    return choice


def _read_leaf(leaf: ast.expr, module: Module, choice: Choice, study: Study) -> bool:
    """Add what an expression may be to a choice; False if that is not in sight."""
    written = _written(leaf, module, study)
    taken = choice.names or choice.functions or choice.parameters
    is_none = isinstance(leaf, ast.Constant) and bool(taken)
    if written is not None and not (is_none and study.target < NONE_IS_DEFAULT):
        choice.mentions[leaf] = written, module
        return True
    named = _by_name(leaf, module, study)
    if named is not None:
        choice.by_name[leaf] = named
        return True
    chosen = tables.returned_for(leaf, "sharding_strategy", module, study)
    if chosen is not None:
        function, home, returned = chosen
        choice.functions[function] = home
        return all(_read_leaf(each, home, choice, study) for each in returned)
    looked_up = tables.lookup(leaf)
    if looked_up is None:
        return _read_parameter(leaf, module, choice, study)
    table, key, default = looked_up
    if default is not None:
        strategy = None if isinstance(default, ast.Constant) else _written(default, module, study)
        if strategy not in OVER_ALL:
            return False
        choice.mentions[default] = str(strategy), module
    found = tables.table_of(table, module, study)
    if found is None:
        return False
    display, where = found
    strategies: dict[object, str] = {}
    for name, value in zip(display.keys, display.values, strict=True):
        strategy = None if isinstance(value, ast.Constant) else _written(value, where, study)
        if not isinstance(name, ast.Constant) or strategy is None:
            return False
        strategies[name.value] = strategy
        choice.mentions[value] = strategy, where
    choice.lookups[leaf] = Rows(key, strategies, where, None if table is display else display)
    return True


def _read_parameter(leaf: ast.expr, module: Module, choice: Choice, study: Study) -> bool:
    """Add what callers give a parameter to a choice, if the choice stands at the call."""
    if choice.names or choice.functions or choice.parameters:
        return False
    found = passed_arguments.read(leaf, "sharding_strategy", RESHARD, module, study)
    if found is None:
        return False
    choice.parameters[leaf] = found
    return all(
        _read_leaf(each, where, choice, study)
        for given, where in found.given
        for each in tables.leaves(given)
    )


def _by_name(node: ast.expr, module: Module, study: Study) -> Rows | None:
    """The strategies of ``ShardingStrategy[name]`` or ``getattr(ShardingStrategy, name)``, if the
    command line has a list of the names, or callers give them: with those that others may give."""
    match node:
        case ast.Subscript(value=enum, slice=key):
            pass
        case ast.Call(func=ast.Name(id="getattr"), args=[enum, key], keywords=[]):
            pass
        case _:
            return None
    if not is_enum(enum, module, study):
        return None
    upper = isinstance(key, ast.Call) and last_name(key.func) == "upper" and not key.args
    asked = method_of(of_kind(key, ast.Call)).value if upper else key
    names = command_line.choices(asked, module, study)
    if not names and not upper:
        given = command_line.given(asked, module, study)
        names = tuple(sorted({*given, *OVER_ALL})) if given else ()
    strategies: dict[object, str] = {n: n.upper() if upper else n for n in names}
    if not names or not set(strategies.values()) <= MEMBERS:
        return None
    return Rows(asked, strategies, module)


def says_the_same(
    key: ast.expr, constructor: Constructor, renamed: Sequence[ast.Name] = ()
) -> bool:
    """Whether an expression of the constructor's function can be asked once more in front of it: it
    calls nothing, and nothing of this file sets what it reads between the two.

    Args:
        renamed: the names of a variable that gets another name.
    """
    table = constructor.module.table
    between = range(key.lineno, constructor.call.lineno + 1)
    for node in ast.walk(key):
        if isinstance(node, (ast.Call, ast.Await, ast.NamedExpr, ast.Lambda, *COMPREHENSIONS)):
            return False
        if isinstance(node, ast.Name):
            scope = table.within[node].lookup(node.id)
            bound = [b.node for b in scope.bindings[node.id]] if scope is not None else []
            bound = [b for b in bound if b not in {table.parents[name] for name in renamed}]
            if any(getattr(b, "lineno", 0) in between and b is not node for b in bound):
                return False
    read = {node.attr for node in ast.walk(key) if isinstance(node, ast.Attribute)}
    stored = (a for a in table.stored_attributes if a.attr in read)
    return not any(a.lineno in between for a in stored)
