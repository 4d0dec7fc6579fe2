"""One list of FSDP1's arguments, and calls of the support module that are checked like torch's."""

from __future__ import annotations

import inspect

import pytest
from packaging.version import Version
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.fsdp1 import api
from fsdp_migrate.planning import rule
from fsdp_migrate.rewriting import check
from fsdp_migrate.runtime import fsdp2_support
from fsdp_migrate.syntax import name_table_builder
from fsdp_migrate.syntax.source import Source

TARGET = Version("2.7")


def test_the_run_time_form_takes_what_fsdp1_takes() -> None:
    taken = [
        name
        for name, parameter in inspect.signature(fsdp2_support.shard).parameters.items()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY  # those are our own
    ]
    assert taken == list(api.CONSTRUCTOR_ARGUMENTS)


def test_the_list_is_that_of_the_installed_torch() -> None:
    taken = list(inspect.signature(FullyShardedDataParallel.__init__).parameters)
    assert taken[1:] == list(api.CONSTRUCTOR_ARGUMENTS)


def test_a_rule_handles_every_argument() -> None:
    rules = rule.load()
    handled = {spelled for r in rules.rules.values() for spelled in r.rule.handles}
    arguments = [f"FullyShardedDataParallel({name}=)" for name in api.CONSTRUCTOR_ARGUMENTS[1:]]
    assert not set(arguments) - handled


def test_defaults_are_fsdp1s() -> None:
    ours = inspect.signature(fsdp2_support.shard).parameters
    theirs = inspect.signature(FullyShardedDataParallel.__init__).parameters
    for name in api.CONSTRUCTOR_ARGUMENTS[1:]:
        # What FSDP1 asks enums of torch's about means the same as None.
        expected = theirs[name].default
        assert ours[name].default in (expected, None), name


def mismatches(text: str) -> list[str]:
    source = Source.parse(text.encode())
    return check.mismatches(name_table_builder.build(source.tree), TARGET)


@pytest.mark.parametrize(
    "call",
    [
        "shard(model)",
        "shard(model, None, strategy, device_id=0, is_root=False)",
        "shard(model, **settings)",
        "shard(*given)",
        "full_params(model, writeback=False)",
        "unknown(model, 1, 2, 3)",
    ],
)
def test_right_calls_of_the_support_module_pass(call: str) -> None:
    assert not mismatches(f"from pkg.fsdp2_support import full_params, shard, unknown\n{call}\n")


@pytest.mark.parametrize(
    "text",
    [
        "from fsdp2_support import shard\nshard(model, new_argument=True)\n",
        "from .fsdp2_support import shard as wrap\nwrap(model, new_argument=True)\n",
        "from pkg.fsdp2_support_2 import shard\nshard()\n",
        "from pkg import fsdp2_support\nfsdp2_support.shard(model, model=model)\n",
    ],
)
def test_wrong_calls_of_the_support_module_are_found(text: str) -> None:
    assert len(mismatches(text)) == 1


def test_a_function_of_that_name_from_elsewhere_is_not_ours() -> None:
    assert not mismatches("from mine import shard\nshard(model, new_argument=True)\n")
    assert not mismatches("from my_fsdp2_support import shard\nshard(new_argument=True)\n")
