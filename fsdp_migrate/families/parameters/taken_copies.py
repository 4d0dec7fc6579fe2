"""Parameters that are copied, or handed to code that copies or changes them.

``[p.clone() for p in model.parameters()]`` and ``average.restore(model.parameters())``: after an
evaluation those of the root are plain tensors, which mix with no ``DTensor`` that was copied
before, and in which changes are lost. Their numbers are those of all ranks, which a program that
adds up the ranks' own would count more than once.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.parameters import value_reads
from fsdp_migrate.families.parameters.parameter_changes import changes_in_place
from fsdp_migrate.families.parameters.parameter_loops import AROUND, METHODS, loop_over
from fsdp_migrate.families.parameters.parameter_owners import sharded
from fsdp_migrate.families.parameters.writes import LATE
from fsdp_migrate.families.training_loop import applied_functions, reductions
from fsdp_migrate.families.training_loop.before_backward import stands_before_backward
from fsdp_migrate.families.training_loop.early_optimizers import is_optimizer_name
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_be_evaluated,
    may_stay_gathered,
    resharded_first,
)
from fsdp_migrate.families.training_loop.training_before import (
    just_trained,
    only_model_was_trained,
)
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.trees import position, walk

RULE = "FSDP408"

COPIED = Construct.parse("copy of parameters")
CHANGED = Construct.parse("parameters handed on to be changed")
COPYING = frozenset({"clone", "cpu", "deepcopy", "numpy"})
# What functions out of sight do with parameters, as their names say.
CHANGING = re.compile(r"restore|copy_to|swap|apply|load|replace|average_parameters", re.I)
KEEPING = re.compile(r"store|stash|backup|save|update|step|ema|average", re.I)
AT_ONCE = "_foreach_"  # torch's functions for lists, whose tensors have to be of one kind
DEEPEST = 2  # functions that hand parameters on


def find_taken_copies(study: Study, module: Module) -> Iterator[Site]:
    """Sites for ``model.parameters()`` where it may follow an evaluation, or a forward whose
    backward is yet to come, and copies are taken or changes are made out of the loop that would say
    so itself."""
    if not study.constructors:
        return
    resharded: dict[str, set[ast.stmt]] = defaultdict(set)
    for call in module.table.calls_by_name.of(METHODS):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        construct = _use(call, study, module, DEEPEST)
        if construct is None or is_gathered(call, study, module):
            continue
        models = sharded(method.value, module, study)
        if not models:
            continue
        if construct == COPIED and stands_before_backward(call, models, study, module):
            yield Site(construct, module, call, call, method.value)
            continue
        if not may_stay_gathered(models, study):
            continue
        statement = module.table.statement(call)
        done = resharded[ast.unparse(method.value)]
        before = done if construct == COPIED else ()  # what changes them is said in any case
        if just_trained(statement, study, module, before, models):
            continue
        if not only_model_was_trained(statement, method.value, study, module):
            done.add(statement)
            yield Site(construct, module, call, call, method.value)


def _use(node: ast.expr, study: Study, module: Module, depth: int) -> Construct | None:
    """What is done with a list of parameters that takes copies of them or changes them."""
    loop = loop_over(node, module)
    if loop is not None:
        target, region, whole = loop
        names = names_in(target)
        says_so = isinstance(whole, ast.stmt) and depth == DEEPEST
        if says_so and changes_in_place(names, region):
            return None
        if changes_in_place(_taken_by(target, node, module), region):
            return CHANGED
        calls = [n for part in region for n in walk(part) if isinstance(n, ast.Call)]
        taken = any(last_name(n.func) in COPYING and names & names_in(n) for n in calls)
        shards = taken or value_reads.needs_shards(names, region, study, module)
        shards = shards or any(
            last_name(n.func).startswith(AT_ONCE) or _needed_in(n, names, study, module)
            for n in calls
        )
        return COPIED if shards else None
    call = _call_given(node, module)
    return _of_call(call, node, study, module, depth) if call is not None else None


def _taken_by(target: ast.expr, node: ast.expr, module: Module) -> set[str]:
    """The variables of a loop that get elements of a list: ``p`` for ``params`` of ``for q, p in
    zip(shadow, params)``."""
    match module.table.parents[node], target:
        case (ast.Call(func=ast.Name(id="zip"), args=given), ast.Tuple(elts=targets)) if (
            len(given) == len(targets) and node in given
        ):
            return names_in(targets[given.index(node)])
    return names_in(target)


def _needed_in(call: ast.Call, names: set[str], study: Study, module: Module) -> bool:
    """Whether a function of the project that is given a loop's variable needs all of them sharded,
    or none."""
    given = [a for a in given_arguments(call) if isinstance(a, ast.Name) and a.id in names]
    for value in study.values(call.func, module) if given else ():
        node = value.node
        if isinstance(value, Function) and isinstance(node, ast.FunctionDef):
            bound = value.owner is not None
            every = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            held = {n for n in every if study.tracer.argument(call, node, n, bound=bound) in given}
            if value_reads.needs_shards(held, node.body, study, value.module):
                return True
    return False


def _is_needed_by_each(call: ast.Call, study: Study, module: Module) -> bool:
    """As :func:`_needed_in`, of what ``map`` calls."""
    function = call.args[0]
    name, _ = applied_functions.named(function, study, module)
    if name in reductions.REDUCING:
        return reductions.is_reduced(call, study, module)
    return any(
        value_reads.needs_shards({a.arg for a in f.node.args.args}, f.node.body, study, f.module)
        for f in study.values(function, module)
        if isinstance(f, Function) and isinstance(f.node, ast.FunctionDef)
    )


def _call_given(node: ast.expr, module: Module) -> ast.Call | None:
    """The call that is given a list of parameters, or ``list(...)`` of it."""
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.Starred, ast.keyword)):
            child = parent
        elif isinstance(parent, ast.Call) and child is not parent.func:
            if last_name(parent.func) not in AROUND:
                return parent
            child = parent
        else:
            return None
    return None


def _of_call(
    call: ast.Call, given: ast.expr, study: Study, module: Module, depth: int
) -> Construct | None:
    name = last_name(call.func)
    if name == applied_functions.MAP:
        return COPIED if _is_needed_by_each(call, study, module) else None
    if name.startswith(AT_ONCE):
        return CHANGED if name.endswith("_") and given in walk(call.args[0]) else COPIED
    if name in COPYING:
        return COPIED  # deepcopy(list(model.parameters()))
    callees = study.values(call.func, module)
    functions = [v for v in callees if isinstance(v, Function)]
    if functions and depth:
        found = {_in_function(call, given, f, study, depth - 1) for f in functions}
        return CHANGED if CHANGED in found else COPIED if COPIED in found else None
    if functions or any(isinstance(v, Class) for v in callees) or name[:1].isupper():
        return None  # made where the model is, and not after an evaluation
    if is_optimizer_name(name) or any(
        n.startswith("torch.") for n in study.external(call.func, module)
    ):
        return None
    if CHANGING.search(name):
        return CHANGED
    return COPIED if KEEPING.search(name) else None


def _in_function(
    call: ast.Call, given: ast.expr, function: Function, study: Study, depth: int
) -> Construct | None:
    """What a function of the project does with the parameter that gets a list of parameters."""
    node, module = function.node, function.module
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    bound = function.owner is not None
    names = {
        arg.arg
        for arg in every
        if (passed := study.tracer.argument(call, node, arg.arg, bound=bound)) is not None
        and given in walk(passed)
    }
    found = {
        _use(name, study, module, depth)
        for name in (n for each in names for n in module.table.names_by_id.named(each))
        if isinstance(name.ctx, ast.Load) and enclosing_function(module, name) is node
    }
    return CHANGED if CHANGED in found else COPIED if COPIED in found else None


def decide_taken_copy(site: Site, study: Study) -> Decision:
    """Reshard the model before its parameters are taken, unless it was just done; what is written
    after an evaluation is told of once in a function."""
    models = sharded(site.subject, site.module, study)
    earlier = list(_earlier(site, study))
    late = site.construct == CHANGED and may_be_evaluated(models, study)
    told = any(each.construct == CHANGED for each in earlier)
    review = LATE if late and not told else ""
    done = {each.statement for each in earlier}
    trained = just_trained(site.statement, study, site.module, done, models)
    if site.construct == CHANGED and trained:
        message = "kept, it was resharded before"
        return study.kept_as_is(site, RULE, message, models=models, review=review)
    return resharded_first(site, [site.subject], study, RULE, models=models, review=review)


def _earlier(site: Site, study: Study) -> Iterator[Site]:
    """The sites above one in its function where parameters of the same model are taken."""
    function = enclosing_function(site.module, site.node)
    for each in study.found[0] if study.found is not None else ():
        if each.construct not in {COPIED, CHANGED} or each.module is not site.module:
            continue
        if position(each.node) >= position(site.node):
            continue
        is_here = enclosing_function(each.module, each.node) is function
        if is_here and ast.unparse(each.subject) == ast.unparse(site.subject):
            yield each
