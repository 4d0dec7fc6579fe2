"""Parts of a sharded model that a list keeps have its parameters."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
MARK = "TODO(fsdp-migrate FSDP408)"
IN_TUPLES = """\
class Layers:
    def __init__(self, model):
        self.kept = []
        for name, layer in model.named_modules():
            if name.endswith("feedforward"):
                self.kept.append((name, layer))

    def learn(self, on):
        for _, layer in self.kept:
            for name, parameter in layer.named_parameters():
                if name in {"temperature"}:
                    parameter.requires_grad = on


def main(net):
    Layers(FSDP(net)).learn(False)
"""
ALONE = IN_TUPLES.replace("(name, layer))", "layer)").replace("for _, layer in", "for layer in")
IN_A_FUNCTION = """\
def main(net):
    model = FSDP(net)
    kept = []
    for layer in model.modules():
        kept.append(layer)
    for layer in kept:
        for name, parameter in layer.named_parameters():
            if "temperature" in name:
                parameter.requires_grad = False
"""
WITH_OWN_PARAMETERS = IN_TUPLES.replace("FSDP(net)", "FSDP(net, use_orig_params=True)")
ANOTHER_LIST = IN_TUPLES.replace("in self.kept:", "in self.others:")
OF_A_PLAIN_MODEL = IN_TUPLES.replace("Layers(FSDP(net))", "FSDP(net), Layers(net.teacher())")
ANOTHER_CLASS = IN_TUPLES.replace("    def learn", "class Others:\n    def learn").replace(
    "Layers(FSDP(net))", "Layers(FSDP(net)), Others()"
)


@pytest.mark.parametrize("program", [IN_TUPLES, ALONE, IN_A_FUNCTION])
def test_parameters_that_are_picked_by_name_are_marked(program: str) -> None:
    assert MARK in rewritten(HEAD + program)


@pytest.mark.parametrize(
    "program", [WITH_OWN_PARAMETERS, ANOTHER_LIST, OF_A_PLAIN_MODEL, ANOTHER_CLASS]
)
def test_others_are_not(program: str) -> None:
    assert MARK not in rewritten(HEAD + program)
