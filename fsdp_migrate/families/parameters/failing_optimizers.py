"""Optimizers whose steps fail on the parameters of a sharded model, or may train otherwise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.optimized_models import asked_for, optimizers
from fsdp_migrate.families.training_loop.early_optimizers import given_parameters, is_optimizer_name
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name

FLATTENING = Construct.parse("optimizer that flattens")
UNSUPPORTED = Construct.parse("optimizer without DTensors")
# Neither of torch nor known to go by elements: what its step does with a DTensor is its own affair.
STRANGE = Construct.parse("optimizer of another package")
FLATTENERS = frozenset({"torch.optim.LBFGS", "torch.optim.lbfgs.LBFGS"})
# Their steps change numbers in place that are sharded otherwise than their parameter.
FAILING = frozenset(
    {
        *("torch.optim.Adafactor", "torch.optim._adafactor.Adafactor"),
        *("torch.optim.Rprop", "torch.optim.rprop.Rprop"),
        *("transformers.Adafactor", "transformers.optimization.Adafactor"),
    }
)


# Their kernels take plain tensors: "got mixed torch.Tensor and DTensor" with one release,
# "illegal memory access" with another (bitsandbytes#1633).
OF_BITSANDBYTES = re.compile(
    r"bitsandbytes\.optim\.(\w+\.)*(Paged)?"
    r"(AdEMAMix|Adagrad|AdamW?|LAMB|LARS|Lion|RMSprop|SGD)(8bit|32bit)?"
)
# Going by elements in plain torch, their steps take whatever layout the parameters have.
BY_ELEMENTS = re.compile(
    r"torch\..*|torchao\..*|lion_pytorch\.Lion|schedulefree\..*"
    r"|transformers\.(optimization\.)?AdamW"
)
CLASS = re.compile(r"[A-Z]\w*")
# Names that say nothing of optimizing.
ALSO_OPTIMIZERS = re.compile(r"shampoo|soap|prodigy|sophia|adan\b|ranger|galore|lomo", re.I)


def find_failing_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers whose steps fail on the parameters of a sharded model."""
    for call in _candidates(module, study):
        names = study.external(call.func, module)
        construct = FLATTENING if names & FLATTENERS else UNSUPPORTED
        if not names & (FLATTENERS | FAILING) and not any(map(OF_BITSANDBYTES.fullmatch, names)):
            if not any(map(_is_strange, names)) or _goes_around(call):
                continue
            construct = STRANGE
        if any(study.traced(held.value, where) for held, where in asked_for(call, module, study)):
            yield Site(construct, module, call, call)


def _candidates(module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls of a file that build an optimizer, those of other packages by their names."""
    calls = module.table.calls_by_name
    named = calls.of([name for name in calls.names if CLASS.fullmatch(name) and _is_one(name)])
    return iter(dict.fromkeys([*optimizers(module, study), *named, *given_parameters(module)]))


def _is_one(name: str) -> bool:
    return is_optimizer_name(name) or bool(ALSO_OPTIMIZERS.search(name))


def _goes_around(call: ast.Call) -> bool:
    """Whether a call is given another optimizer, which has the parameters."""
    return any(is_optimizer_name(last_name(each)) for each in given_arguments(call))


def _is_strange(name: str) -> bool:
    """Whether a name is that of a class of optimizers of which nothing is known here."""
    last = name.rpartition(".")[2]
    return bool(CLASS.fullmatch(last)) and _is_one(last) and not BY_ELEMENTS.fullmatch(name)
