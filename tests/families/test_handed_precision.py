"""``MixedPrecision`` objects that a library out of sight is given stay FSDP1's."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import logging

import torch
from library import Trainer, configure
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


"""
POLICY = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
MADE = f"mp = {POLICY}\nmodel = FSDP(net, mixed_precision=mp)\n"
GIVEN = {
    "under its name": f"{MADE}configure(model, mixed_precision=mp)\n",
    "by position": f"{MADE}configure(model, mp)\n",
    "in a list": f"{MADE}configure([mp])\n",
    "a class": f"{MADE}Trainer(model, policy=mp)\n",
    "of a class": (
        f"class Settings:\n    precision = {POLICY}\n\n\n"
        "model = FSDP(net, mixed_precision=Settings.precision)\n"
        "configure(model, Settings.precision)\n"
    ),
    "out of a table": (
        f"TABLE = {{'half': {POLICY}, 'full': None}}\n"
        "model = FSDP(net, mixed_precision=TABLE[key])\n"
        "configure(model, mixed_precision=TABLE[key])\n"
    ),
    "of a function": (
        f"def precision():\n    return {POLICY}\n\n\n"
        "model = FSDP(net, mixed_precision=precision())\nconfigure(model, precision())\n"
    ),
    "spread": (
        f"kwargs = dict(mixed_precision={POLICY})\n"
        "model = FSDP(net, **kwargs)\nconfigure(model, **kwargs)\n"
    ),
}
NOT_GIVEN = {
    "printed": f"{MADE}print(mp)\n",
    "logged": f'{MADE}logging.info("%s", mp)\n',
    "its dtype": f"{MADE}configure(model, mp.param_dtype)\n",
    "whether there is one": f"{MADE}configure(model, half=mp is not None)\n",
    "something else": f'{MADE}configure(model, precision="bf16")\n',
    "of the project": f"def own(policy):\n    print(policy)\n\n\n{MADE}own(mp)\n",
}


@pytest.mark.parametrize("way", GIVEN)
def test_what_a_library_is_given_stays(way: str) -> None:
    result, after = migrate({"train.py": HEAD + GIVEN[way]})
    left = {(d.code, d.message) for d in result.decisions if d.outcome is Outcome.LEFT}
    assert {code for code, _ in left} == {"FSDP202"}
    assert all("which is outside the given paths" in message for _, message in left)
    assert f"{POLICY}" in after["train.py"]
    assert "model = shard(net, " in after["train.py"]  # it takes FSDP1's object
    assert "MixedPrecisionPolicy" not in after["train.py"]


def test_what_only_a_library_is_given_stays() -> None:
    program = f"{HEAD}model = FSDP(net)\nconfigure(model, mixed_precision={POLICY})\n"
    _, after = migrate({"train.py": program})
    assert f"configure(model, mixed_precision={POLICY})" in after["train.py"]
    assert "model = fully_shard(net)" in after["train.py"]


@pytest.mark.parametrize("way", NOT_GIVEN)
def test_what_no_library_is_given_becomes_a_policy(way: str) -> None:
    result, after = migrate({"train.py": HEAD + NOT_GIVEN[way]})
    assert not [d.message for d in result.decisions if d.outcome is Outcome.LEFT]
    assert "model = fully_shard(net, mp_policy=mp)" in after["train.py"]


def test_another_policy_of_the_same_file_becomes_one() -> None:
    program = f"{HEAD}model = FSDP(net, mixed_precision={POLICY})\nconfigure(model, {POLICY})\n"
    _, after = migrate({"train.py": program})
    assert "mp_policy=MixedPrecisionPolicy(" in after["train.py"]
    assert f"configure(model, {POLICY})" in after["train.py"]
