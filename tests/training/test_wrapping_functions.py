"""Functions that wrap a model for several callers, with settings as parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import functools
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(x)

"""
TRAIN = """

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = build(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(5):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""
PARAMETERS = """
def shard_model(
    model,
    device_id,
    param_dtype=torch.float32,
    process_group=None,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    sync_module_states=True,
):
    return FSDP(
        module=model,
        process_group=process_group,
        sharding_strategy=sharding_strategy,
        auto_wrap_policy=functools.partial(
            lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks
        ),
        mixed_precision=MixedPrecision(param_dtype=param_dtype),
        device_id=device_id,
        sync_module_states=sync_module_states,
    )


def build(net):
    shard = functools.partial(shard_model, device_id=torch.device("cpu"))
    return shard(net ARGUMENTS)
"""
GRAD_OP = ", sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"


@pytest.mark.parametrize("arguments", ["", GRAD_OP, ", process_group=dist.new_group([0, 1])"])
def test_settings_that_callers_pass(launcher: Launcher, tmp_path: Path, arguments: str) -> None:
    program = HEAD + PARAMETERS.replace(" ARGUMENTS", arguments) + TRAIN
    both = written({"train.py": program.encode()}, tmp_path)
    assert "fully_shard(model, mp_policy=root_mp_policy" in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10  # of two ranks


SETTINGS = """\
import torch
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy
import functools

ARGUMENTS = {
    "auto_wrap_policy": functools.partial(
        lambda_auto_wrap_policy, lambda_fn=lambda m: getattr(m, "out_features", 0) == 6
    ),
    "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
    "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
    "use_orig_params": True,
}
"""
SPREAD = """
from options import ARGUMENTS


class Pair(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x):
        return self.one(x) + self.two(x)


def build(net):
    cpu = torch.device("cpu")
    first = FSDP(net, **ARGUMENTS, device_id=cpu, sync_module_states=True)
    return Pair(first, FSDP(Net(), **ARGUMENTS, device_id=cpu, sync_module_states=True))
"""


def test_arguments_at_the_top_of_another_file(launcher: Launcher, tmp_path: Path) -> None:
    program = HEAD + SPREAD + TRAIN
    both = written({"train.py": program.encode(), "options.py": SETTINGS.encode()}, tmp_path)
    assert 'ARGUMENTS["auto_wrap_policy"](module)' in both.text()
    assert " shard(" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10


JOINED = """
from torch.distributed.fsdp.wrap import (
    _or_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)


def policy_of(net, frozen, fewest, classes):
    policies = []
    if frozen:
        policies.append(
            functools.partial(
                lambda_auto_wrap_policy, lambda_fn=lambda m: getattr(m, "out_features", 0) == 2
            )
        )
    SIZED
    if classes is not None:
        by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)
        policies.append(by_class)
    if len(policies) > 0:
        return functools.partial(_or_policy, policies=policies)
    return None


def build(net):
    return FSDP(
        net,
        auto_wrap_policy=policy_of(net, ARGUMENTS),
        device_id=torch.device("cpu"),
        sync_module_states=True,
    )
"""
SIZED = "policies.append(functools.partial(size_based_auto_wrap_policy, min_num_params=fewest))"


@pytest.mark.parametrize(
    "arguments", ["True, 0, None", "False, 0, {nn.Linear}", "True, 40, None", "False, 0, None"]
)
def test_joined_policies(launcher: Launcher, tmp_path: Path, arguments: str) -> None:
    sized = f"if fewest:\n        {SIZED}" if "40" in arguments else ""
    joined = JOINED.replace("SIZED", sized).replace("ARGUMENTS", arguments)
    both = written({"train.py": (HEAD + joined + TRAIN).encode()}, tmp_path)
    assert "def shard_by_policy" not in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10


WEIGHTS_OF_RANK_0 = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Scaled(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(6), persistent=False)

    def forward(self, x):
        return super().forward(x * self.scale)


def init_fn(x: nn.Module):
    if dist.get_rank() != 0:
        x = x.to_empty(device="cpu", recurse=False)
    return x


def build(net, dtype=torch.float64):
    if dist.get_rank() == 0:
        net = Scaled()
    else:
        with torch.device("meta"):
            net = Scaled()
    buffer_dtype = torch.bfloat16 if dtype is None else torch.float32
    mixed_precision = MixedPrecision(reduce_dtype=torch.float32, buffer_dtype=buffer_dtype)
    model = FSDP(
        net,
        param_init_fn=init_fn,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        mixed_precision=mixed_precision,
        sync_module_states=True,
        device_mesh=init_device_mesh("cpu", (2,)),
    )
    return model
"""


@pytest.mark.parametrize("dtype", ["torch.float64", "None"])
def test_a_model_that_only_rank_0_has(launcher: Launcher, tmp_path: Path, dtype: str) -> None:
    program = HEAD + WEIGHTS_OF_RANK_0.replace("torch.float64", dtype) + TRAIN
    both = written({"train.py": program.encode()}, tmp_path)
    assert "buffer.data = buffer.to(buffer_dtype)" in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10


BECOMES_A_STRATEGY = """
def shard_model(net, sharding_strategy="full"):
    sharding_strategy = {
        "full": ShardingStrategy.FULL_SHARD,
        "grad_op": ShardingStrategy.SHARD_GRAD_OP,
        "no_shard": ShardingStrategy.NO_SHARD,
    }[sharding_strategy]
    return FSDP(
        net,
        sharding_strategy=sharding_strategy,
        device_id=torch.device("cpu"),
        sync_module_states=True,
    )


def build(net):
    return shard_model(net, "NAME")
"""


@pytest.mark.parametrize("name", ["grad_op", "no_shard"])
def test_a_parameter_that_becomes_a_strategy(launcher: Launcher, tmp_path: Path, name: str) -> None:
    program = HEAD + BECOMES_A_STRATEGY.replace("NAME", name) + TRAIN
    both = written({"train.py": program.encode()}, tmp_path)
    assert "}[sharding_strategy]" in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10


OF_MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def strategy_for(mesh):
    if mesh.ndim == 1:
        chosen = ShardingStrategy.SHARD_GRAD_OP
    elif mesh.ndim == 2:
        chosen = ShardingStrategy.HYBRID_SHARD
    else:
        raise ValueError(mesh.ndim)
    return chosen


def build(net):
    mesh = init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
    return FSDP(
        net,
        device_mesh=mesh,
        sharding_strategy=strategy_for(mesh),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        sync_module_states=True,
    )
"""


@pytest.mark.parametrize(("shape", "names"), [("(2,)", '("dp",)'), ("(1, 2)", '("ddp", "dp")')])
def test_a_strategy_for_the_mesh(
    launcher: Launcher, tmp_path: Path, shape: str, names: str
) -> None:
    program = HEAD + OF_MESH.replace("SHAPE", shape).replace("NAMES", names) + TRAIN
    both = written({"train.py": program.encode()}, tmp_path)
    assert "strategy_for(mesh)" in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10


RETURNED = """
STRATEGIES = {"whole": ShardingStrategy.NO_SHARD, "zero2": ShardingStrategy.SHARD_GRAD_OP}


class Teacher(nn.Module):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def forward(self, x):
        return self.student(x) - self.teacher(x).detach()


def wrapper(name, classes):
    mixed = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.float32)
    strategy = STRATEGIES[name]
    wrap = functools.partial(
        FSDP,
        sharding_strategy=strategy,
        mixed_precision=mixed,
        auto_wrap_policy=ModuleWrapPolicy(classes),
        device_id=torch.device("cpu"),
        sync_module_states=True,
        use_orig_params=True,
    )
    return wrap


def build(net):
    return Teacher(wrapper("WHICH", {nn.Linear})(net), wrapper("WHICH", {nn.Linear})(Net()))
"""


@pytest.mark.parametrize("which", ["whole", "zero2"])
def test_a_partial_that_is_returned(launcher: Launcher, tmp_path: Path, which: str) -> None:
    program = HEAD.replace("import lambda", "import ModuleWrapPolicy, lambda")
    program += RETURNED.replace("WHICH", which) + TRAIN
    both = written({"train.py": program.encode()}, tmp_path)
    assert "def wrap(model):" in both.text()
    assert not list(both.after.parent.glob("fsdp2_support*"))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 10
