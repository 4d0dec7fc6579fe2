"""The device of a mesh is the one that the code gives, however it is spelled."""

from __future__ import annotations

import ast
import textwrap

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

"""
ACCELERATOR = 'torch.accelerator.current_accelerator() or torch.device("cpu")'


def migrated(source: str, target: str = "2.7") -> str:
    options = Options(target=Version(target))
    result, after = migrate({"example.py": HEAD + source}, options)
    assert not result.problems
    left = {d.code for d in result.decisions if d.outcome is Outcome.LEFT}
    assert left <= {"FSDP100"}  # an unused import, which text that is run may name
    return after["example.py"].split("ModuleWrapPolicy\n")[-1]


def mesh_type(text: str) -> str:
    """The type that the only mesh is made for, a name that it was given before looked through."""
    tree = ast.parse(text)
    bound = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    made = [c.args[0] for c in calls if getattr(c.func, "id", "") == "init_device_mesh"]
    made += [c.args[1] for c in calls if getattr(c.func, "attr", "") == "from_group"]
    assert len(made) == 1, text
    kind = made[0]
    if isinstance(kind, ast.Attribute) and isinstance(kind.value, ast.Name):
        kind.value = bound.get(kind.value.id, kind.value)
    return ast.unparse(kind).replace("'", '"')


def function(body: str, parameters: str = "model") -> str:
    return f"def build({parameters}):\n" + textwrap.indent(body, "    ")


# What FSDP1 was given as device_id, and the type that a mesh is made for; "" where the default
# mesh has it.
GIVEN = {
    'torch.device("cpu")': '"cpu"',
    '"cpu"': '"cpu"',
    'torch.device("cuda", local_rank)': "",
    'torch.device(f"cuda:{local_rank}")': "",
    'torch.device("cuda:" + str(local_rank))': "",
    '"cuda:%d" % local_rank': "",
    'torch.device("cuda:{}".format(local_rank))': "",
    'torch.device(type="xpu", index=local_rank)': "",
    "torch.cuda.current_device()": "",
    "torch.accelerator.current_device_index()": "",
    "local_rank": "",
    "local_rank % 8": "",
    'int(os.environ["LOCAL_RANK"])': "",
    "0": "",
    "None": "",
    'torch.device("cuda" if torch.cuda.is_available() else "cpu")': (
        '"cuda" if torch.cuda.is_available() else "cpu"'
    ),
    'torch.device("npu" if flag else "cpu")': '"npu" if flag else "cpu"',
    'torch.device("npu") if flag else torch.device("cpu")': '"npu" if flag else "cpu"',
    'torch.device(flag or "cpu")': 'torch.device(flag or "cpu").type',
    'torch.device("cpu" if flag else flag)': 'torch.device("cpu" if flag else flag).type',
    "torch.device(flag)": "torch.device(flag).type",
    'torch.device(f"{flag}")': 'torch.device(f"{flag}").type',
    "flag.device": "torch.device(flag.device).type",
    'flag["device"]': 'torch.device(flag["device"]).type',
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_mesh_is_made_only_for_a_device_that_the_default_has_not(given: str) -> None:
    body = f"torch.cuda.set_device(local_rank)\nreturn FSDP(model, device_id={given})\n"
    text = migrated(function(body, "model, local_rank, flag"))
    if GIVEN[given]:
        assert mesh_type(text) == GIVEN[given]
    else:
        assert "mesh" not in text


# What the code says of the device, and the type of a mesh that is needed in any case.
NEEDED = {
    "": f"({ACCELERATOR}).type",
    "None": f"({ACCELERATOR}).type",
    "local_rank": f"({ACCELERATOR}).type",
    "torch.device(local_rank)": f"({ACCELERATOR}).type",
    'torch.device("cuda", local_rank)': '"cuda"',
    "torch.cuda.current_device()": '"cuda"',
    "torch.xpu.current_device()": '"xpu"',
    'torch.device("hpu")': '"hpu"',
    'torch.device("npu", local_rank)': '"npu"',
    '"cpu"': '"cpu"',
    "torch.cuda.current_device() if torch.cuda.is_available() else None": f"({ACCELERATOR}).type",
    'torch.cuda.current_device() if torch.cuda.is_available() else torch.device("cpu")': (
        '"cuda" if torch.cuda.is_available() else "cpu"'
    ),
}


@pytest.mark.parametrize("given", NEEDED)
@pytest.mark.parametrize("needed", ["NO_SHARD", "HYBRID_SHARD", "group"])
def test_a_mesh_that_is_needed_is_made_for_the_given_device(needed: str, given: str) -> None:
    device = f", device_id={given}" if given else ""
    how = f"sharding_strategy=ShardingStrategy.{needed}"
    if needed == "HYBRID_SHARD":
        how += ", auto_wrap_policy=ModuleWrapPolicy({nn.Linear})"
    elif needed == "group":
        how = "process_group=dist.new_group([0, 1])"
    body = f"module.set_device(local_rank)\nreturn FSDP(model, {how}{device})\n"
    text = migrated(function(body, "model, local_rank, module"))
    assert mesh_type(text) == NEEDED[given]
    assert "set_device(" not in text.replace("module.set_device(local_rank)", "")
    if needed == "HYBRID_SHARD" and '"cuda"' not in mesh_type(text):
        assert "torch.cuda.device_count" not in text


# Where a value comes from that names a device, and what is made of it.
ORIGINS = {
    "a constant of the module": (
        'DEVICE = "cpu"\n' + function("return FSDP(model, device_id=torch.device(DEVICE))\n"),
        '"cpu"',
    ),
    "a constant that a file overrides": (
        'DEVICE = "cuda"\nexec(open("config.py").read())\n'
        + function("return FSDP(model, device_id=torch.device(DEVICE))\n"),
        "torch.device(DEVICE).type",
    ),
    "a field of a dataclass": (
        '@dataclass\nclass Config:\n    device: str = "cuda"\n\n\n'
        + function(
            "return FSDP(model, device_id=torch.device(config.device))\n", "model, config: Config"
        )
        + "\n\nbuild(nn.Linear(3, 3), Config())\n",
        "torch.device(config.device).type",
    ),
    "an entry of a dictionary": (
        'CONFIG = {"device": "cuda"}\n'
        + function('return FSDP(model, device_id=torch.device(CONFIG["device"]))\n'),
        'torch.device(CONFIG["device"]).type',
    ),
    "the command line": (
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--device", default="cuda")\n'
        "args = parser.parse_args()\n"
        "model = FSDP(nn.Linear(3, 3), device_id=torch.device(args.device))\n",
        "torch.device(args.device).type",
    ),
    "the environment": (
        function(
            'device = os.environ.get("DEVICE", "cuda")\n'
            "return FSDP(model, device_id=torch.device(device))\n"
        ),
        "torch.device(device).type",
    ),
    "an attribute": (
        "class Trainer:\n"
        "    def __init__(self, model, flag):\n"
        '        self.device = torch.device("cuda") if flag else torch.device("cpu")\n'
        "        self.model = FSDP(model, device_id=self.device)\n",
        "self.device.type",
    ),
    "a property": (
        "class Trainer:\n"
        "    @property\n"
        "    def device(self):\n"
        '        return torch.device("cuda" if torch.cuda.is_available() else "cpu")\n\n'
        "    def wrap(self, model):\n"
        "        self.model = FSDP(model, device_id=self.device)\n",
        "self.device.type",
    ),
    "every caller": (
        function("return FSDP(model, device_id=device)\n", "model, device")
        + "\n\nbuild(nn.Linear(3, 3), torch.device('cpu'))\n",
        '"cpu"',
    ),
    "some callers": (
        function("return FSDP(model, device_id=device)\n", "model, device")
        + "\n\nbuild(nn.Linear(3, 3), torch.device('cpu'))\n"
        + "build(nn.Linear(3, 3), torch.device('cuda'))\n",
        "device.type",
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_device_is_read_where_it_comes_from(origin: str) -> None:
    source, expected = ORIGINS[origin]
    used = f"def choose(device):\n    torch.cuda.set_device(device)\n\n\n{source}"
    assert mesh_type(migrated(used)) == expected


NAMING = {
    "the device made current": "torch.cuda.set_device(0)\n",
    "the current device": "device = torch.cuda.current_device()\n",
    "the backend": 'dist.init_process_group("nccl")\n',
    "a backend for each device": 'dist.init_process_group(backend="cpu:gloo,cuda:nccl")\n',
    "the model moved": "model = model.cuda()\n",
    "the model moved by name": 'model.to("cuda")\n',
    "the model moved to an object": 'device = torch.device("cuda", 1)\nmodel.to(device)\n',
    "the same branch": "if flag:\n    torch.cuda.set_device(0)\n    ",
    "a with statement": "with torch.cuda.device(0):\n    pass\n",
}
NOT_NAMING = {
    "nothing": "",
    "another branch": "if flag:\n    torch.cuda.set_device(0)\n",
    "the other branch": "if flag:\n    torch.cuda.set_device(0)\nelse:\n    ",
    "a backend by flag": 'dist.init_process_group("nccl" if flag else "gloo")\n',
    "a backend that is given": "dist.init_process_group(flag)\n",
    "gloo": 'dist.init_process_group("gloo")\n',
    "a question": "torch.cuda.is_available()\n",
    "what does nothing without": "torch.cuda.manual_seed_all(0)\ntorch.cuda.empty_cache()\n",
    "a conditional expression": "device = torch.cuda.current_device() if flag else 0\n",
    "behind and": "flag and torch.cuda.set_device(0)\n",
    "what may fail": "try:\n    torch.cuda.set_device(0)\nexcept RuntimeError:\n    pass\n",
    "a loop": "for device in flag:\n    torch.cuda.set_device(device)\n",
    "a lambda": "choose = lambda: torch.cuda.set_device(0)\n",
    "a function": "def choose():\n    torch.cuda.set_device(0)\n",
    "behind a return": (
        "def choose():\n    if flag:\n        return\n    torch.cuda.set_device(0)\nchoose()\n"
    ),
    "a model moved by flag": 'model.to("cuda" if flag else "cpu")\n',
    "a device without a use": 'device = torch.device("cuda")\n',
    "another module's device": "torch.xpu.set_device(0)\n",
}
MAKE = "return FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)\n"


@pytest.mark.parametrize("said", NAMING)
def test_a_program_that_says_cuda_keeps_the_word(said: str) -> None:
    assert mesh_type(migrated(function(NAMING[said] + MAKE, "model, flag"))) == '"cuda"'


@pytest.mark.parametrize("said", NOT_NAMING)
def test_a_program_that_may_run_elsewhere_is_not_bound_to_cuda(said: str) -> None:
    text = migrated(function(NOT_NAMING[said] + MAKE, "model, flag"))
    assert mesh_type(text) == f"({ACCELERATOR}).type"


SETUP = 'def setup():\n    dist.init_process_group("nccl")\n\n\n'
BUILD = function(MAKE) + "\n\n"
AROUND = {
    "a caller": (SETUP + BUILD + "def main():\n    setup()\n    build(nn.Linear(3, 3))\n", True),
    "one of two callers": (
        SETUP
        + BUILD
        + "def main():\n    setup()\n    build(nn.Linear(3, 3))\n\n\n"
        + "def test():\n    build(nn.Linear(3, 3))\n",
        False,
    ),
    "a caller by flag": (
        SETUP
        + BUILD
        + "def main(flag):\n    if flag:\n        setup()\n    build(nn.Linear(3, 3))\n",
        False,
    ),
    "another program": (SETUP + BUILD + "def main():\n    setup()\n", False),
    "the module": ("torch.cuda.set_device(0)\n" + BUILD, True),
    "what is run as a script": (
        BUILD + 'if __name__ == "__main__":\n    torch.cuda.set_device(0)\n',
        False,
    ),
    "the script that builds": (
        BUILD
        + 'if __name__ == "__main__":\n    torch.cuda.set_device(0)\n    build(nn.Linear(3, 3))\n',
        True,
    ),
    "the class": (
        "class Trainer:\n"
        "    def __init__(self, model):\n"
        "        self.start()\n"
        "        self.model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)\n\n"
        '    def start(self):\n        dist.init_process_group(backend="nccl")\n',
        True,
    ),
    "another class": (
        "class Group:\n"
        '    def __init__(self):\n        dist.init_process_group(backend="nccl")\n\n\n'
        + BUILD
        + "def main():\n    group = Group()\n    return build(nn.Linear(3, 3))\n",
        True,
    ),
}


@pytest.mark.parametrize("around", AROUND)
def test_cuda_is_named_only_by_what_runs_with_the_model(around: str) -> None:
    source, says_cuda = AROUND[around]
    expected = '"cuda"' if says_cuda else f"({ACCELERATOR}).type"
    assert mesh_type(migrated(source)) == expected


# What nothing else makes current, and what does then.
CHOSEN = {
    "local_rank": "torch.get_device_module().set_device(local_rank)",
    "local_rank % 8": "torch.get_device_module().set_device(local_rank % 8)",
    'torch.device("cuda", local_rank)': ('torch.cuda.set_device(torch.device("cuda", local_rank))'),
    'torch.device("xpu", local_rank)': 'torch.xpu.set_device(torch.device("xpu", local_rank))',
    "local_rank if flag else None": (
        "device_id = local_rank if flag else None\n"
        "    if device_id is not None:\n"
        "        torch.get_device_module().set_device(device_id)"
    ),
    "flag": (
        "device = torch.device(flag)\n"
        "    if device.index is not None:\n"
        "        torch.get_device_module(device).set_device(device)\n"
        "    mesh = init_device_mesh(device.type, (dist.get_world_size(),))"
    ),
    'torch.device(f"cuda:{local_rank}" if flag else "cpu")': (
        'device = torch.device(f"cuda:{local_rank}" if flag else "cpu")\n'
        "    torch.get_device_module(device).set_device(device)\n"
        "    mesh = init_device_mesh(device.type, (dist.get_world_size(),))"
    ),
    'torch.device(f"cuda:{local_rank}" if flag else "cuda")': (
        'device = torch.device(f"cuda:{local_rank}" if flag else "cuda")\n'
        "    if device.index is not None:\n"
        "        torch.get_device_module(device).set_device(device)"
    ),
}
CURRENT = ("None", "torch.cuda.current_device()", 'torch.device("cuda")', '"cuda"', "'cuda:0'")


@pytest.mark.parametrize("given", CHOSEN)
def test_a_device_that_nothing_makes_current_is_made_so(given: str) -> None:
    text = migrated(function(f"return FSDP(model, device_id={given})\n", "model, local_rank, flag"))
    assert CHOSEN[given] in text


@pytest.mark.parametrize("given", [*CHOSEN, *CURRENT])
def test_a_device_that_is_current_stays_alone(given: str) -> None:
    choose = "" if given in CURRENT else "flag.module.set_device(local_rank)\n"
    body = f"{choose}return FSDP(model, device_id={given})\n"
    text = migrated(function(body, "model, local_rank, flag"))
    assert text.count("set_device(") == (1 if choose else 0)


OWN = {
    "of the project": ("def set_device(name):\n    print(name)\n\n\n", "set_device(rank)", True),
    "of the project, around torch's": (
        "def set_device(name):\n    torch.cuda.set_device(name)\n\n\n",
        "set_device(rank)",
        False,
    ),
    "of a module that is given": ("", "module.set_device(rank)", False),
    "of a module that is asked for": ("", "torch.get_device_module().set_device(rank)", False),
    "of the accelerator": ("", "torch.accelerator.set_device_index(rank)", False),
    "of another name": ("", "module.select(rank)", True),
}


@pytest.mark.parametrize("own", OWN)
def test_only_what_makes_a_device_current_counts(own: str) -> None:
    before, call, is_emitted = OWN[own]
    body = f"{call}\nreturn FSDP(model, device_id=rank)\n"
    text = migrated(before + function(body, "model, rank, module"))
    assert ("torch.get_device_module().set_device(rank)\n    return" in text) == (
        is_emitted or "get_device_module" in call
    )


@pytest.mark.parametrize(
    "given",
    ['torch.device("cuda", torch.cuda.current_device())', 'torch.device("cuda", 0)'],
)
def test_an_index_that_is_current_is_not_set(given: str) -> None:
    text = migrated(function(f"return FSDP(model, device_id={given})\n"))
    assert "return fully_shard(model)" in text
    assert "set_device" not in text


def test_one_name_for_the_accelerator_serves_all_models() -> None:
    make = MAKE.removeprefix("return ")
    body = f"model = {make}critic = {make.replace('model', 'critic', 1)}return model, critic\n"
    text = migrated(function(body, "model, critic"))
    assert text.count(ACCELERATOR) == 1
    assert text.count("accelerator.type") == 2


def test_earlier_releases_get_what_they_have() -> None:
    text = migrated(function(MAKE), target="2.6")
    assert mesh_type(text) == "torch.device(torch.get_device_module().current_device()).type"


PICK = """\
def pick(rank):
    {body}
    return torch.device("cuda", rank)


def build(model, rank):
    return FSDP(model, device_id=pick(rank))
"""


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        ("torch.cuda.set_device(rank)", True),
        ("torch.get_device_module().set_device(rank)", True),
        ("os.environ['CUDA'] = str(rank)", True),
        ("rank = rank % torch.cuda.device_count()", False),
        ('"""The device of a rank."""', False),
    ],
)
def test_a_function_that_does_more_than_to_answer_is_still_called(body: str, stays: bool) -> None:
    current = "torch.cuda.set_device(0)\n" + PICK.format(body=body)
    text = migrated(current)
    assert ("    pick(rank)\n" in text) == stays


def test_a_name_that_an_argument_gives_stays() -> None:
    given = "device_id=(here := torch.cuda.current_device())"
    text = migrated(function(f"model = FSDP(model, {given})\nreturn model, here\n"))
    assert "(here := torch.cuda.current_device())\n" in text


PICKED = """\
import torch


def pick(name):
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
"""


@pytest.mark.parametrize("is_set", [True, False])
def test_a_file_without_fsdp_may_make_the_device_current(is_set: bool) -> None:
    given = PICKED if is_set else PICKED.replace("torch.cuda.set_device(device)", "print(device)")
    source = f"{HEAD}from devices import pick\n\n\n" + function(
        "device = pick(name)\nreturn FSDP(model, device_id=device)\n", "model, name"
    )
    _, after = migrate({"example.py": source, "devices.py": given})
    assert mesh_type(after["example.py"]) in {"device.type", "pick(name).type"}
    assert ("set_device(device)" in after["example.py"]) == (not is_set)
