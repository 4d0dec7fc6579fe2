"""Tell scripts that run a model without training it, to which much of FSDP makes no difference.

What a script runs is told by names: what stands outside of functions, in it and in what it imports
of the project, and then each function and class whose name stands in what it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.one_program import imported
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import DEFINITIONS, Definition, asks_for_main, last_part, walk

EVALUATES = ("no_grad", "inference_mode", "set_grad_enabled")
TRAINS = frozenset({"backward", "fit", "grad"})
STATE, OWN_STATES = "state_dict", frozenset({"state_dict", "load_state_dict"})
OTHERS = frozenset({"save_pretrained", "summon_full_params", "Trainer", "Accelerator"})

# Decorators and bases that call nothing of what they are given but by its name.
PLAIN_DECORATORS = frozenset(
    {*EVALUATES, "staticmethod", "classmethod", "property", "dataclass", "contextmanager", "wraps"}
)
PLAIN_BASES = frozenset({"Module", "object", "ABC", "Dataset", "IterableDataset", "Enum"})


def only_evaluates(module: Module, study: Study) -> bool:
    """Whether a file is a script that nobody imports, that runs its model without gradients, and
    that neither trains it nor asks for its state: nor does what it runs of what it imports."""
    if not module.mentions("__main__") or not module.mentions(*EVALUATES):
        return False
    importers = (m for m in study.project.modules if m.mentions(module.path.stem))
    if any(module in imported(m, study) for m in importers if m is not module):
        return False
    modules = [module, *imported(module, study)]
    defined = {n.name for m in modules for n in m.source.tree.body if isinstance(n, DEFINITIONS)}
    libraries = {each: _libraries(each, study) for each in modules}
    for root, where in _run_by(module, libraries, defined, study):
        said = _said(root, libraries[where], study)
        if said.trains or said.others & OTHERS - (defined - libraries[where]):
            return False
        if any(study.models(owner, where) for owner in said.owners):
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Said:
    """What the names in a statement say, which many scripts may run."""

    words: frozenset[str]  # of what it may run
    trains: bool
    others: frozenset[str]  # of OTHERS, unless the project has its own of that name
    owners: list[ast.expr]  # of states


def _said(root: ast.AST, libraries: frozenset[str], study: Study) -> _Said:
    known = study.cache(_statements)
    if root not in known:
        known[root] = _read(root, libraries)
    return known[root]


def _statements(study: Study) -> dict[ast.AST, _Said]:
    return {}


def _read(root: ast.AST, libraries: frozenset[str]) -> _Said:
    words, named, owners = set[str](), set[str](), list[ast.expr]()
    trains = False
    for node in walk(root):
        match node:
            case ast.Name(id=word):
                words.add(word)
                named.add(word)
            case ast.Attribute(value=owner, attr=word):
                named.add(word)
                if not isinstance(owner, ast.Name) or owner.id not in libraries:
                    words.add(word)  # torch.load is no method of the project's
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in OWN_STATES:
                owners.append(owner)
            case ast.Call(func=func):
                trains = trains or last_name(func) in TRAINS or STATE in last_name(func)
            case ast.Constant(value=str(word)):
                words.add(word)
            case ast.alias(name=word, asname=str()):
                words.add(word.rpartition(".")[2])
    return _Said(frozenset(words), trains, OTHERS & named, owners)


def _run_by(
    script: Module, libraries: dict[Module, frozenset[str]], defined: set[str], study: Study
) -> Iterator[tuple[ast.AST, Module]]:
    """What a script runs, with the file in which it stands.

    Args:
        libraries: the names for other libraries' in each of the files.
        defined: the names that the files give to classes and functions.
    """
    words: set[str] = set()
    waiting: list[tuple[ast.stmt, Module]] = [
        (statement, module)
        for module in libraries
        for statement in module.source.tree.body
        if module is script or not asks_for_main(statement)
    ]
    is_new = True
    while is_new:
        now = [each for each in waiting if _runs(each[0], words)]
        waiting = [each for each in waiting if not _runs(each[0], words)]
        for statement, module in now:
            ran: list[ast.AST] = [statement]
            if isinstance(statement, ast.ClassDef):
                plain = all(last_part(base) in PLAIN_BASES | defined for base in statement.bases)
                plain = plain and _decorators(statement) <= PLAIN_DECORATORS
                later = [each for each in statement.body if plain and _is_asked_for(each)]
                waiting += [(each, module) for each in later]
                others = [each for each in statement.body if each not in later]
                ran = [*statement.bases, *statement.keywords, *statement.decorator_list, *others]
            for root in ran:
                words |= _said(root, libraries[module], study).words
                yield root, module
        is_new = bool(now)


def _runs(statement: ast.stmt, words: set[str]) -> bool:
    """Whether a statement of a file or a class runs where some words stand in what runs."""
    if not isinstance(statement, DEFINITIONS):
        return True
    return statement.name in words or not _decorators(statement) <= PLAIN_DECORATORS


def _decorators(definition: Definition) -> set[str]:
    return {
        last_part(each.func if isinstance(each, ast.Call) else each)
        for each in definition.decorator_list
    }


def _is_asked_for(statement: ast.stmt) -> bool:
    """Whether a statement of a class is a method that runs only where its name stands."""
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return not statement.name.startswith("__") and statement.name != "forward"


def _libraries(module: Module, study: Study) -> frozenset[str]:
    """The names that a file gives to other libraries and what it imports of them, and to nothing
    else."""
    known = study.cache(_names_of_libraries)
    if module not in known:
        imports, resolve = module.table.imports, study.project.resolve
        found = {b.name for b in imports if resolve(b.qualified, module) is None}
        named = module.table.names_by_id.named
        known[module] = frozenset(
            name for name in found if all(isinstance(each.ctx, ast.Load) for each in named(name))
        )
    return known[module]


def _names_of_libraries(study: Study) -> dict[Module, frozenset[str]]:
    return {}
