"""Settings of a module that executed text may change (nanoGPT's configurator) are not known."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import argparse

from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

{before}offload = False
{after}

def main(model):
    return FSDP(model, cpu_offload=CPUOffload(offload_params=offload))
"""
CHOSEN = "CPUOffloadPolicy() if offload else OffloadPolicy()"


@pytest.mark.parametrize(
    "after",
    [
        "exec(open('configurator.py').read())",
        "for text in ('a', 'b'):\n    exec(text)",
        "exec(open('configurator.py').read(), globals())",
        "exec('offload = True')",
        "globals().update(vars(argparse.ArgumentParser().parse_args()))",
        "for key in ('offload',):\n    globals()[key] = True",
        "def configure(settings):\n    globals().update(settings)\n",
    ],
)
def test_what_text_may_set_is_asked_at_run_time(after: str) -> None:
    _, files = migrate({"train.py": PROGRAM.format(before="", after=after)})
    assert CHOSEN in files["train.py"]


def test_settings_of_another_module_are_too() -> None:
    program = PROGRAM.replace("{before}offload = False\n{after}", "from settings import offload")
    settings = "offload = False\nexec(open('configurator.py').read())\n"
    _, files = migrate({"train.py": program, "settings.py": settings})
    assert CHOSEN in files["train.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("", "exec('seed = 1')"),
        ("", "seed = eval('offload')"),
        ("", "exec(open('other.py').read(), {})"),
        ("", "print(globals())"),
        ("", "print(globals()['offload'])"),
        ("", "database.exec(open('tables.sql').read())"),
        ("exec(open('configurator.py').read())\n", ""),
        ("", "config = {key: globals()[key] for key in ('offload',)}"),
    ],
)
def test_what_nothing_sets_is_known(before: str, after: str) -> None:
    _, files = migrate({"train.py": PROGRAM.format(before=before, after=after)})
    assert "return fully_shard(model)" in files["train.py"]


STRATEGIES = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from model import Block, net

{before}
{exec}
{after}
"""
MODEL = """\
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x


net = nn.Sequential(Block(), Block())
"""
EXEC = 'exec(open("configurator.py").read())'
STAYS = "model = FSDP(net, sharding_strategy=strategy)"
NEVER = "strategy = ShardingStrategy.SHARD_GRAD_OP"
NANO = """\
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        config_file = arg
        with open(config_file) as f:
            print(f.read())
        exec(open(config_file).read())
    else:
        key, val = arg.split("=")
        key = key[2:]
        if key in globals():
            try:
                attempt = literal_eval(val)
            except (SyntaxError, ValueError):
                attempt = val
            assert type(attempt) == type(globals()[key])
            globals()[key] = attempt
"""


def _migrated(before: str, text: str, after: str = STAYS, call: str = EXEC, **more: str) -> str:
    program = STRATEGIES.format(before=before, exec=call, after=after)
    files = {f"{name}.py": code for name, code in more.items()}
    known = {"train.py": program, "model.py": MODEL, "configurator.py": text}
    _, migrated = migrate({**known, **files})
    return migrated["train.py"]


def test_a_strategy_that_text_may_set_is_read_at_run_time() -> None:
    assert "fully_shard(net, **sharding_kwargs(strategy))" in _migrated(NEVER, "strategy = mine\n")


@pytest.mark.parametrize(
    ("before", "text", "after", "read"),
    [
        (NEVER, "strategy = a\n", f"def build():\n    {STAYS}", "sharding_kwargs(strategy)"),
        (
            "table = {'a': ShardingStrategy.FULL_SHARD, 'b': ShardingStrategy.SHARD_GRAD_OP}",
            "table = other\n",
            "def build(key):\n    return FSDP(net, sharding_strategy=table[key])",
            "sharding_kwargs(table[key])",
        ),
        (
            "strategy = ShardingStrategy.FULL_SHARD if fast else ShardingStrategy.SHARD_GRAD_OP",
            "strategy = other\n",
            STAYS,
            "sharding_kwargs(strategy)",
        ),
        (
            "kwargs = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
            "kwargs = other\n",
            "model = FSDP(net, **kwargs)",
            "shard(net, **kwargs)",
        ),
        (
            "def chosen():\n    return ShardingStrategy.SHARD_GRAD_OP",
            "def chosen():\n    return other\n",
            "model = FSDP(net, sharding_strategy=chosen())",
            "sharding_kwargs(chosen())",
        ),
        ("from settings import strategy", "strategy = a\n", STAYS, "sharding_kwargs(strategy)"),
        ("Wrapper = FSDP", "Wrapper = other\n", "model = Wrapper(net)", "model = Wrapper(net)"),
    ],
    ids=["in a function", "table", "choice", "kwargs", "function", "imported", "class"],
)
def test_whoever_reads_a_name_asks_whether_text_sets_it(
    before: str, text: str, after: str, read: str
) -> None:
    settings = f"from torch.distributed.fsdp import ShardingStrategy\n{NEVER}\n"
    assert read in _migrated(before, text, after, settings=settings)


def test_a_policy_that_text_may_set_is_asked_at_run_time() -> None:
    imported = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
    policy = f"{imported}policy = ModuleWrapPolicy({{Block}})"
    source = _migrated(policy, "policy = mine\n", "model = FSDP(net, auto_wrap_policy=policy)")
    assert "shard_by_policy(net, policy)" in source
    assert "TODO(fsdp-migrate FSDP102)" in source


@pytest.mark.parametrize(
    "call",
    [
        "exec(input())",
        "exec('strategy = ShardingStrategy.FULL_SHARD')",
        "globals().update(settings)",
        "def configure(key, value):\n    globals()[key] = value",
        'exec(open("absent.py").read())',
    ],
)
def test_text_that_is_not_in_sight_may_set_a_strategy(call: str) -> None:
    assert "sharding_kwargs(strategy)" in _migrated(NEVER, "", call=call)


@pytest.mark.parametrize(
    ("text", "call", "more"),
    [
        ("batch = 12\n", EXEC, {}),
        ("print('no strategy here')\n", EXEC, {}),
        (NANO, EXEC, {"other": "def a():\n    strategy = 1\n    return strategy\n"}),
        ("", "exec('batch = 12')", {}),
        ("strategy = 1\n", "exec(open('configurator.py').read(), {})", {}),
        ("strategy = 1\n", "print(globals()['batch'])", {}),
    ],
)
def test_a_strategy_that_no_text_sets_is_known(text: str, call: str, more: dict[str, str]) -> None:
    source = _migrated(NEVER, text, call=call, **more)
    assert "fully_shard(net, reshard_after_forward=False)" in source


def test_a_file_of_settings_that_the_command_line_names_may_set_one() -> None:
    source = _migrated(NEVER, NANO, small="strategy = 1\n")
    assert "sharding_kwargs(strategy)" in source


def test_text_that_runs_before_a_strategy_is_written_does_not_set_it() -> None:
    program = f"{NEVER}\n{STAYS}"
    source = _migrated("", "strategy = 1\n", program)
    assert "fully_shard(net, reshard_after_forward=False)" in source


def test_functions_and_classes_are_not_defined_anew_out_of_sight() -> None:
    before = "def build(model):\n    return FSDP(model)"
    source = _migrated(before, "", "model = build(net)", call="exec(input())")
    assert "return fully_shard(model)" in source
