"""A class of the project's own that holds a module where FSDP1's wrapper does."""

from __future__ import annotations

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

OWN = """\
class OwnSharding(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.{name} = module


"""
PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{own}def check(layers):
    for layer in layers:
        print(type(layer._fsdp_wrapped_module))


def clean_names(model):
    return [
        n.replace("_fsdp_wrapped_module.", "") if "_fsdp_wrapped_module" in n else n
        for n, _ in model.named_parameters()
    ]


model = FSDP(nn.Linear(4, 4))
check(model.modules())
print(clean_names(model))
"""


def of(own: str) -> tuple[str, list[Outcome]]:
    result, after = migrate({"train.py": PROGRAM.format(own=own)})
    return after["train.py"], [o for code, o in outcomes(result) if code == "FSDP406"]


def test_what_a_class_of_the_projects_own_has_in_its_names_stays() -> None:
    text, found = of(OWN.format(name="_fsdp_wrapped_module"))
    assert "type(layer._fsdp_wrapped_module)" in text
    assert 'n.replace("_fsdp_wrapped_module.", "") if' in text
    assert "An FSDP2 model has no inner module, unlike the project's" in text
    assert found
    assert Outcome.LEFT not in found


def test_without_such_a_class_only_fsdp1_has_it() -> None:
    for own in ("", OWN.format(name="module")):
        text, _ = of(own)
        assert "type(layer)" in text
        assert 'n.replace("_fsdp_wrapped_module.", "")' not in text
