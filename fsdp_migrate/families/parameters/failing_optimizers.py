"""Optimizers whose steps fail on the parameters of a sharded model."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.early_optimizers import given_parameters, parameter_calls
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.kinds import method_of

FLATTENING = Construct.parse("optimizer that flattens")
UNSUPPORTED = Construct.parse("optimizer without DTensors")
FLATTENERS = frozenset({"torch.optim.LBFGS", "torch.optim.lbfgs.LBFGS"})
# Their steps change numbers in place that are sharded otherwise than their parameter.
FAILING = frozenset(
    {
        *("torch.optim.Adafactor", "torch.optim._adafactor.Adafactor"),
        *("torch.optim.Rprop", "torch.optim.rprop.Rprop"),
    }
)


def find_failing_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers whose steps fail on the parameters of a sharded model."""
    for call in given_parameters(module):
        names = study.external(call.func, module)
        construct = FLATTENING if names & FLATTENERS else UNSUPPORTED
        if not names & (FLATTENERS | FAILING):
            continue
        for given in parameter_calls(call):
            model = method_of(given).value
            if study.traced(model, module):
                yield Site(construct, module, call, call, model)
                break
