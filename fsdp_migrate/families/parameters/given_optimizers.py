"""Optimizers that a function is given beside a model that it wraps, by callers out of sight.

``Trainer(model, optimizer=None)`` wraps its model and steps the optimizer that it was given, which
was built before. FSDP1 with ``use_orig_params=True`` kept the parameters; those of ``fully_shard``
are others. That some caller in sight gives none, or wraps a model in between, tells nothing of a
caller that is not in sight.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant, External, Made, Unknown, Value
from fsdp_migrate.families.parameters import distant_optimizers
from fsdp_migrate.families.training_loop.early_optimizers import is_optimizer, is_optimizer_name
from fsdp_migrate.families.wrapping import part_paths
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import walk

CONSTRUCT = Construct.parse("given optimizer")
NAME = re.compile(
    r"(?!(?:build|create|get|has|init|make|no|use|with)_)(?:\w+_)?optim(?:izer)?s?(?:_[a-z\d])?"
)
OF_OPTIMIZERS = re.compile(r"(?:Optimizer|Adam|AdamW|SGD)\b")
OF_OTHERS = re.compile(r"\b(?:Callable|[Tt]ype|[Dd]ict|str)\b")
OF_ANYTHING = re.compile(r"\b(?:Any|object)\b")
# What optimizers have: what is asked for something else is none.
METHODS = frozenset({"add_param_group", "defaults", "load_state_dict", "param_groups", "state"}) | {
    "state_dict",
    "step",
    "zero_grad",
    "__class__",
}


@dataclass(frozen=True)
class GivenOptimizer:
    """A parameter of a function, or of the class whose ``__init__`` it is."""

    function: str
    name: str


def find_given_optimizers(study: Study) -> Iterator[Site]:
    """Sites for models that a function is given, beside an optimizer that it uses."""
    kept = distant_optimizers.keeping(study)
    told = {s.receiver for s in distant_optimizers.find_unseen_wraps(study)} if kept else set()
    for constructor in kept:
        if constructor.call not in told and given_optimizer(constructor, study) is not None:
            wrapped = constructor.wrapped
            yield Site(CONSTRUCT, constructor.module, wrapped, wrapped, constructor.call)


def given_optimizer(constructor: Constructor, study: Study) -> GivenOptimizer | None:
    """The optimizer that a function is given which leads to a constructor, with its model."""
    if constructor in distant_optimizers.given_anew(study):
        return None
    leading = distant_optimizers.leading_to(constructor.call, constructor.module, study)
    for function, [(_, module), *_] in leading.items():
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for argument, default in _parameters(function):
            if _is_optimizer(argument, default, function, module, study) and _is_given_model(
                constructor, argument, function, module, study
            ):
                called = distant_optimizers.called_by(function, module)
                return GivenOptimizer(called, argument.arg)
    return None


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function, each with what it is where it is not given."""
    own = function.args
    placed = [*own.posonlyargs, *own.args]
    missing = [None] * (len(placed) - len(own.defaults))
    yield from zip(placed, [*missing, *own.defaults], strict=True)
    yield from zip(own.kwonlyargs, own.kw_defaults, strict=True)


def _is_optimizer(
    argument: ast.arg,
    default: ast.expr | None,
    function: ast.AST,
    module: Module,
    study: Study,
) -> bool:
    """Whether a parameter is an optimizer that nobody in sight is known to give."""
    is_none = default is None or (isinstance(default, ast.Constant) and default.value is None)
    if not is_none or not _is_declared(argument):
        return False
    reads = module.table.reads(argument.arg, module.table.scopes[function])
    if not any(_is_used(read, module) for read in reads):
        return False
    if any(_is_something_else(read, module) for read in reads):
        return False
    return all(_may_be_another(v, study) for v in study.values(reads[0], module))


def _may_be_another(value: Value, study: Study) -> bool:
    """Whether a value is nothing, nobody knows what, or an optimizer of a library that no rule
    knows: those that rules know hold their model back where they are made."""
    match value:
        case Constant(value=None) | Unknown():
            return True
        case Made(callee=External(name=name) as callee):
            is_named = is_optimizer_name(name.rpartition(".")[2])
            return is_named and not is_optimizer(callee, study)
    return False


def _is_declared(argument: ast.arg) -> bool:
    """Whether the annotation of a parameter, or its name without one, is an optimizer's."""
    is_named = NAME.fullmatch(argument.arg) is not None
    if argument.annotation is None:
        return is_named
    said = ast.unparse(argument.annotation)
    if OF_OTHERS.search(said):
        return False
    return bool(OF_OPTIMIZERS.search(said)) or (is_named and bool(OF_ANYTHING.search(said)))


def _is_used(read: ast.Name, module: Module) -> bool:
    """Whether more is done with it than to ask whether it is there."""
    return not isinstance(module.table.parents[read], ast.Compare)


def _is_something_else(read: ast.Name, module: Module) -> bool:
    """Whether something is done with it that no optimizer is there for: it is called, asked by a
    key, or compared with a name."""
    match module.table.parents[read]:
        case ast.Call(func=called):
            return called is read
        case ast.Attribute(attr=name):
            return name not in METHODS
        case ast.Compare() as asked:
            return any(isinstance(n, ast.Constant) and n.value is not None for n in walk(asked))
        case ast.Subscript(value=owner):
            return owner is read
    return False


def _is_given_model(
    constructor: Constructor,
    optimizer: ast.arg,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    module: Module,
    study: Study,
) -> bool:
    """Whether the function is given what is wrapped as well."""
    wrapped = part_paths.places(constructor.wrapped, constructor.module, study)
    for argument, _ in _parameters(function):
        reads = module.table.reads(argument.arg, module.table.scopes[function])
        if argument is optimizer or not reads or argument.arg == "self":
            continue
        if part_paths.shared(part_paths.places(reads[0], module, study), wrapped):
            return True
    return False
