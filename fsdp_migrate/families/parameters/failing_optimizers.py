"""Optimizers whose steps fail on the parameters of a sharded model."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.optimized_models import asked_for, optimizers
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study

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


# Their kernels take plain tensors: "got mixed torch.Tensor and DTensor" with one release,
# "illegal memory access" with another (bitsandbytes#1633).
OF_BITSANDBYTES = re.compile(
    r"bitsandbytes\.optim\.(\w+\.)*(Paged)?"
    r"(AdEMAMix|Adagrad|AdamW?|LAMB|LARS|Lion|RMSprop|SGD)(8bit|32bit)?"
)


def find_failing_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers whose steps fail on the parameters of a sharded model."""
    for call in optimizers(module, study):
        names = study.external(call.func, module)
        construct = FLATTENING if names & FLATTENERS else UNSUPPORTED
        if not names & (FLATTENERS | FAILING) and not any(map(OF_BITSANDBYTES.fullmatch, names)):
            continue
        if any(study.traced(held.value, where) for held, where in asked_for(call, module, study)):
            yield Site(construct, module, call, call)
