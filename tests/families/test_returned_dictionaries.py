"""Arguments that a function puts together are written out only where nobody else can feel it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


"""
PLAIN = """\
def settings(cfg):
    found = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP, "sync_module_states": cfg.sync}
    return found


def build(net, cfg):
    return FSDP(net, **settings(cfg))
"""
METHOD = """\
class Plugin:
    sync = False

    def settings(self):
        return dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, sync_module_states=self.sync)


def build(net):
    plugin = Plugin()
    return FSDP(net, **plugin.settings())
"""
CALL = "return FSDP(net, **settings(cfg))"
ALIKE = {
    "a call": PLAIN,
    "a method": METHOD,
    "a name": PLAIN.replace(CALL, "given = settings(cfg)\n    return FSDP(net, **given)"),
    "an attribute of the argument": PLAIN.replace("**settings(cfg)", "**settings(cfg.sharding)"),
    "a keyword": PLAIN.replace("**settings(cfg)", "**settings(cfg=cfg)"),
    "an argument that is computed": PLAIN.replace("**settings(cfg)", "**settings(cfg.read())"),
    "a value that is computed": PLAIN.replace("cfg.sync}", "cfg.sync()}"),
    "a local value": PLAIN.replace("cfg.sync}", "sync}").replace(
        "    found", "    sync = bool(cfg.sync)\n    found", 1
    ),
    "an update": PLAIN.replace(
        "    return found", "    found.update(use_orig_params=True)\n    return found"
    ),
    "an update by a dictionary": PLAIN.replace(
        "    return found", '    found.update({"use_orig_params": True})\n    return found'
    ),
    "an item": PLAIN.replace(
        "    return found", '    found["use_orig_params"] = True\n    return found'
    ),
    "a setting that changes before the call": PLAIN.replace(
        CALL, "given = settings(cfg)\n    cfg = cfg.other\n    return FSDP(net, **given)"
    ),
    "two models": PLAIN.replace(
        CALL, "other = FSDP(cfg.net, **settings(cfg))\n    return FSDP(net, **settings(cfg)), other"
    ),
    "a loop": PLAIN.replace(
        CALL,
        "nets = []\n    for net in cfg.nets:\n        nets.append(FSDP(net, **settings(cfg)))\n"
        "    return nets",
    ),
}
OTHERWISE = {
    "another caller": PLAIN + "print(settings(None))\n",
    "a caller that keeps it": PLAIN.replace(
        CALL, "given = settings(cfg)\n    cfg.given = given\n    return FSDP(net, **given)"
    ),
    "a caller that changes it": PLAIN.replace(
        CALL, "given = settings(cfg)\n    given.update(cfg.more)\n    return FSDP(net, **given)"
    ),
    "a function that is handed on": PLAIN + "hooks = [settings]\n",
    "a function that is another": PLAIN.replace(
        "def build", "settings = wrap(settings)\n\n\ndef build"
    ),
    "a decorator": PLAIN.replace("def settings", "@cached\ndef settings"),
    "a second return": PLAIN.replace(
        "    found", "    if cfg.none:\n        return {}\n    found", 1
    ),
    "a change by a method": PLAIN.replace(
        "    return found", "    found.pop(cfg.drop)\n    return found"
    ),
    "a reader in the function": PLAIN.replace(
        "    return found", "    cfg.log(found)\n    return found"
    ),
    "a change in a loop": PLAIN.replace(
        "    return found", "    for key in cfg:\n        found[key] = cfg[key]\n    return found"
    ),
    "an entry that may be missing": PLAIN.replace(
        "    return found",
        "    if cfg.more:\n        found['ignored_states'] = cfg.more\n    return found",
    ),
    "an entry from elsewhere": PLAIN.replace("found = {", "found = {**cfg.more, "),
    "what is no argument": PLAIN.replace("found = {", 'found = {"strategy": 1, '),
    "an argument that is given twice": PLAIN.replace(
        "FSDP(net,", "FSDP(net, sync_module_states=True,"
    ),
    "a second method of the name": METHOD.replace(
        "\n\ndef build",
        "\n\nclass Other(Plugin):\n    def settings(self):\n        return {}\n\n\ndef build",
    ),
    "a name in a string": METHOD + 'getattr(Plugin(), "settings")()\n',
    "a method that is replaced": METHOD + "Plugin.settings = dict\n",
    "what the loop and the dictionary need": PLAIN.replace(
        '"sync_module_states": cfg.sync',
        '"auto_wrap_policy": ModuleWrapPolicy({torch.nn.Linear}), "ignored_states": cfg.frozen()',
    ),
    "classes that only the function has": PLAIN.replace(
        '"sync_module_states": cfg.sync', '"auto_wrap_policy": ModuleWrapPolicy({cfg.read()})'
    ),
}


@pytest.mark.parametrize("way", ALIKE)
def test_what_is_only_for_constructors_is_written_out(way: str) -> None:
    result, after = migrate({"train.py": HEAD + ALIKE[way]})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    assert "fully_shard(" in text
    assert "reshard_after_forward" in text
    assert "ShardingStrategy" not in text
    assert all(outcome.value == "rewritten" for _, outcome in outcomes(result))
    again, _ = migrate(after)
    assert not again.changes


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_felt_is_for_the_running_program(way: str) -> None:
    result, after = migrate({"train.py": HEAD + OTHERWISE[way]})
    text = after["train.py"]
    left = any(outcome.value == "left" for _, outcome in outcomes(result))
    assert "fully_shard(" not in text
    assert left or "shard(" in text
    assert "could not be edited" not in str([d.message for d in result.decisions])


def test_what_the_call_takes_stays_in_a_dictionary_that_is_made_once_for_a_loop() -> None:
    loop = "for part in cfg.parts:\n        cfg.add(FSDP(part, **given))"
    source = PLAIN.replace(CALL, f"given = settings(cfg)\n    {loop}")
    _, after = migrate({"train.py": HEAD + source.replace("cfg.sync}", "cfg.sync()}")})
    assert 'if given["sync_module_states"]:' in after["train.py"]
    assert "cfg.add(fully_shard(part, reshard_after_forward=False))" in after["train.py"]


def test_another_file_may_call_the_function() -> None:
    files = {
        "train.py": HEAD + PLAIN,
        "show.py": "from train import settings\nprint(settings(None))\n",
    }
    _, after = migrate(files)
    assert "fully_shard(" not in after["train.py"]


@pytest.mark.parametrize("handed_on", ["settings", "settings, build"])
def test_a_function_that_a_package_hands_on_is_anybodys(handed_on: str) -> None:
    files = {"train.py": HEAD + PLAIN, "api.py": f"from train import {handed_on}\n"}
    _, after = migrate(files)
    assert "fully_shard(" not in after["train.py"]


MESH = """\
def settings(cfg):
    return dict(device_id=torch.device(cfg.device), use_orig_params=True)


def build(net, cfg):
    first = FSDP(net.first, **settings(cfg))
    second = FSDP(net.second, device_id=torch.device(cfg.device))
    return first, second
"""


def test_a_mesh_of_the_function_is_not_known_at_the_call() -> None:
    _, after = migrate({"train.py": HEAD + MESH})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    build = text[text.index("def build") :]
    assert "init_device_mesh(" in build


LADDER = """\
def settings(cfg):
    strategy = ShardingStrategy.FULL_SHARD
    if cfg.keep:
        strategy = ShardingStrategy.SHARD_GRAD_OP
    found = {"sharding_strategy": strategy}
    return found


def build(net, cfg):
    given = settings(cfg)
    dist.init_process_group("nccl")
    return FSDP(net, **given)
"""


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "NO_SHARD"])
def test_a_variable_of_the_function_stays_there(strategy: str) -> None:
    _, after = migrate({"train.py": HEAD + LADDER.replace("SHARD_GRAD_OP", strategy)})
    text = after["train.py"]
    build = text[text.index("def build") :]
    assert "reshard_after_forward" not in build
    assert "mesh" not in build


BY_NAME = """\
import argparse


def settings(args):
    return {"sharding_strategy": ShardingStrategy[args.strategy]}


def build(net):
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=["FULL_SHARD", "NO_SHARD"], default="NO_SHARD")
    args = parser.parse_args()
    given = settings(args)
    dist.init_process_group("nccl")
    return FSDP(net, **given)
"""


def test_a_mesh_is_not_made_before_the_processes_know_each_other() -> None:
    result, after = migrate({"train.py": HEAD + BY_NAME})
    text = after["train.py"]
    assert "could not be edited" not in str([d.message for d in result.decisions])
    assert "init_device_mesh(" not in text[: text.index("init_process_group")]


def test_what_the_call_can_read_is_read_there() -> None:
    _, after = migrate({"train.py": HEAD + PLAIN})
    assert "    if cfg.sync:\n" in after["train.py"]
    assert "pop(" not in after["train.py"]


TAKEN = (
    "a value that is computed",
    "a local value",
    "an argument that is computed",
    "a setting that changes before the call",
)


@pytest.mark.parametrize("way", TAKEN)
def test_what_the_call_cannot_read_is_taken_out_of_the_dictionary(way: str) -> None:
    _, after = migrate({"train.py": HEAD + ALIKE[way]})
    assert '.pop("sync_module_states")' in after["train.py"]


OF_ANOTHER_FILE = """\
from torch.distributed.fsdp import ShardingStrategy


def settings(cfg):
    found = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
    if cfg.orig:
        found["use_orig_params"] = True
    return found
"""
TAKING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from options import settings


def build(net, cfg):
    given = settings(cfg)
    return FSDP(net, **given)
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(("    return", "    return"), True, id="one that is written there"),
        pytest.param(("    return", '    print(f"{given}")\n    return'), True, id="it is shown"),
        pytest.param(
            ("    return", '    print(given["sharding_strategy"])\n    return'),
            True,
            id="something else asks for it",
        ),
        pytest.param(
            ("    return", '    given["sharding_strategy"] = cfg.strategy\n    return'),
            False,
            id="another one is put there",
        ),
        pytest.param(
            (
                "    return",
                "    if cfg.full:\n"
                '        given["sharding_strategy"] = ShardingStrategy.FULL_SHARD\n    return',
            ),
            False,
            id="another one in one case",
        ),
    ],
)
def test_a_strategy_of_another_file_is_said_at_the_call_if_it_is_one(
    change: tuple[str, str], said: bool
) -> None:
    _, after = migrate({"train.py": TAKING.replace(*change), "options.py": OF_ANOTHER_FILE})
    assert ("fully_shard(net, reshard_after_forward=False)" in after["train.py"]) is said
    chosen = "sharding_kwargs(", '["sharding_strategy"] != ShardingStrategy.SHARD_GRAD_OP'
    assert any(each in after["train.py"] for each in chosen) is not said
    asked = "print(given[" in after["train.py"]
    replaced = "= cfg.strategy" in after["train.py"]
    kept = asked or not (said or replaced)
    assert ("ShardingStrategy.SHARD_GRAD_OP" in after["options.py"]) is kept


def test_a_precision_that_the_buffers_need_is_asked_of_the_dictionary() -> None:
    source = f"""{HEAD}from torch.distributed.fsdp import MixedPrecision


def half(dtype):
    if dtype is None:
        return None
    return MixedPrecision(param_dtype=dtype, buffer_dtype=dtype)


def settings(dtype, group):
    found = {{"mixed_precision": half(dtype)}}
    if group is not None:
        found["process_group"] = group
    return found


def build(net, dtype, group):
    return FSDP(net, **settings(dtype, group))
"""
    result, after = migrate({"example.py": source})
    assert not result.problems
    assert (
        '    kwargs = settings(dtype, group)\n    mp_policy = kwargs["mp_policy"]\n'
        in after["example.py"]
    )
