"""FSDP101: ``__init_subclass__``, which the class that ``fully_shard`` derives runs once more."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Registered(nn.Module):
    kinds = {}

    def __init_subclass__(cls, PARAMETERS):
        BODY


class Small(Registered, tag="small"):
    pass


class Other(nn.Module):
    pass


model = FSDP(MADE())
"""


def outcomes(parameters: str, body: str, made: str = "Small") -> list[Outcome]:
    source = PROGRAM.replace("PARAMETERS", parameters).replace("BODY", body).replace("MADE", made)
    result, _ = migrate({"train.py": source})
    name = "hook of derived classes"
    return [d.outcome for d in result.decisions if d.site.construct.name == name]


@pytest.mark.parametrize("made", ["Small", "Registered"])
@pytest.mark.parametrize(
    "parameters", ["*, tag, **kwargs", "tag", "tag, other=None", "*, a=1, tag"]
)
def test_a_hook_that_needs_arguments_is_left(parameters: str, made: str) -> None:
    """``fully_shard`` raises there: measured with torch 2.13."""
    assert outcomes(parameters, "pass", made) == [Outcome.LEFT]


@pytest.mark.parametrize("parameters", ["tag=None, **kwargs", "**kwargs", "*, tag=''"])
def test_a_hook_that_does_something_is_marked(parameters: str) -> None:
    assert outcomes(parameters, "cls.kinds[cls.__name__] = cls") == [Outcome.REVIEW]


@pytest.mark.parametrize("body", ["pass", '"""Nothing."""', "super().__init_subclass__(**kwargs)"])
def test_a_hook_that_does_nothing_is_no_site(body: str) -> None:
    assert outcomes("**kwargs", body) == []


@pytest.mark.parametrize("made", ["Other", "nn.Identity"])
def test_a_hook_of_classes_that_are_not_sharded_is_no_site(made: str) -> None:
    assert outcomes("*, tag", "pass", made) == []
