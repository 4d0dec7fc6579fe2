"""A parameter takes what strategies mean to ``fully_shard`` only where every call is in sight."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

LIBRARY = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard_model(net, group=None, strategy=ShardingStrategy.FULL_SHARD):
    return FSDP(net, process_group=group, sharding_strategy=strategy)
"""
PLAIN = """\
from library import shard_model


def build(net):
    return shard_model(net)
"""
PARTIAL = """\
from functools import partial

from library import shard_model
from torch.distributed.fsdp import ShardingStrategy


def build(net, teacher):
    shard = partial(shard_model, strategy=ShardingStrategy.SHARD_GRAD_OP)
    return shard(net), shard(teacher, strategy=ShardingStrategy.FULL_SHARD)
"""


POSITIONAL = """\
from library import shard_model
from torch.distributed.fsdp import ShardingStrategy


def build(net):
    return shard_model(net, None, ShardingStrategy.SHARD_GRAD_OP)
"""


@pytest.mark.parametrize("train", [PLAIN, PARTIAL, POSITIONAL])
def test_written_out(train: str) -> None:
    result, after = migrate({"library.py": LIBRARY, "train.py": train})
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten", "review"}
    library, train = after.values()
    assert "fully_shard(net, mesh=mesh, reshard_after_forward=reshard_after_forward)" in library
    assert "trategy" not in train
    assert "ShardingStrategy" not in library
    assert train.count("shard_model(net, ") == 0 or "(net, None, False)" in train


OTHERWISE = {
    "printed": (LIBRARY.replace("    return", "    print(strategy)\n    return"), PLAIN),
    "compared": (
        LIBRARY.replace(
            "    return",
            "    net.gather = strategy == ShardingStrategy.FULL_SHARD\n    return",
        ),
        PLAIN,
    ),
    "set to another": (
        LIBRARY.replace("    return", "    strategy = strategy or net.strategy\n    return"),
        PLAIN,
    ),
    "a hybrid one": (LIBRARY.replace("FULL_SHARD", "HYBRID_SHARD"), PLAIN),
    "a decorated function": (LIBRARY.replace("def ", "@register\ndef "), PLAIN),
    "further arguments": (LIBRARY.replace("FULL_SHARD)", "FULL_SHARD, **more)"), PLAIN),
    "a name that is taken": (
        LIBRARY.replace("net, group", "net, reshard_after_forward, group"),
        PLAIN,
    ),
    "stars": (
        LIBRARY,
        PLAIN.replace("(net):", "(net, *more):").replace("(net)\n", "(net, *more)\n"),
    ),
    "a dictionary": (
        LIBRARY,
        PLAIN.replace("(net):", "(net, **more):").replace("(net)\n", "(net, **more)\n"),
    ),
    "handed on": (LIBRARY, PLAIN.replace("shard_model(net)", "net.apply_to_parts(shard_model)")),
    "in a list": (LIBRARY, PLAIN.replace("shard_model(net)", "[f(net) for f in (shard_model,)]")),
    "renamed": (
        LIBRARY,
        PLAIN.replace("import shard_model", "import shard_model as s").replace(
            "shard_model(", "s("
        ),
    ),
    "passed from a command line": (
        LIBRARY,
        PLAIN.replace("(net):", "(net, args):").replace(
            "(net)\n", "(net, strategy=args.strategy)\n"
        ),
    ),
    "passed by who knows what": (
        LIBRARY,
        PARTIAL.replace("shard(teacher", "net.how(shard)(teacher"),
    ),
}


@pytest.mark.parametrize("which", OTHERWISE)
def test_otherwise(which: str) -> None:
    library, train = OTHERWISE[which]
    result, after = migrate({"library.py": library, "train.py": train})
    assert "reshard_after_forward=reshard_after_forward" not in after["library.py"]
    assert "could not be edited" not in str([d.message for d in result.decisions])


def test_scripts_have_no_other_callers() -> None:
    script = f"{LIBRARY}\n\nif __name__ == '__main__':\n    shard_model(net)\n"
    result, after = migrate({"train.py": script})
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten"}
    assert "reshard_after_forward=True):" in after["train.py"]


BECOMES = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard_model(net, strategy="full"):
    strategy = {"full": ShardingStrategy.FULL_SHARD, "no": ShardingStrategy.NO_SHARD}[strategy]
    return FSDP(net, sharding_strategy=strategy)
"""


def test_a_parameter_that_becomes_a_strategy() -> None:
    _, after = migrate({"library.py": BECOMES})
    assert 'reshard_after_forward = {"full": True, "no": True}[strategy]' in after["library.py"]
    assert 'if strategy == "no":' in after["library.py"]


ASSIGN = "    strategy = {"


@pytest.mark.parametrize(
    "library",
    [
        BECOMES.replace(ASSIGN, "    if isinstance(strategy, str):\n        strategy = {"),
        BECOMES.replace("    return", "    print(strategy)\n    return"),
        BECOMES.replace("    return", "    net.strategy = lambda: strategy\n    return"),
        BECOMES.replace(ASSIGN, "    for _ in net.parts:\n        strategy = {"),
        BECOMES.replace("    return", "    strategy = net.strategy or strategy\n    return"),
    ],
)
def test_a_parameter_that_may_be_read_as_a_strategy(library: str) -> None:
    result, after = migrate({"library.py": library})
    assert "reshard_after_forward" not in after["library.py"]
    assert "could not be edited" not in str([d.message for d in result.decisions])


def test_a_parameter_that_is_read_before_it_becomes_a_strategy() -> None:
    library = BECOMES.replace(ASSIGN, "    net.named = strategy\n    strategy = {")
    _, after = migrate({"library.py": library})
    assert "net.named = strategy\n    reshard_after_forward = {" in after["library.py"]


OF_MESH = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def strategy_for(mesh):
    if mesh.ndim == 1:
        chosen = ShardingStrategy.SHARD_GRAD_OP
    elif mesh.ndim == 2:
        chosen = ShardingStrategy.HYBRID_SHARD
    else:
        raise ValueError(mesh.ndim)
    return chosen


class Trainer:
    def shard(self, net, blocks):
        mesh = self.mesh
        strategy = strategy_for(mesh)
        policy = ModuleWrapPolicy(blocks)
        return FSDP(
            net, device_mesh=self.mesh, sharding_strategy=strategy, auto_wrap_policy=policy
        )
"""


def test_a_strategy_for_the_mesh() -> None:
    _, after = migrate({"train.py": OF_MESH})
    assert "reshard_after_forward = strategy_for(mesh)" in after["train.py"]
    assert "sharding_kwargs" not in after["train.py"]


@pytest.mark.parametrize(
    "source",
    [
        OF_MESH.replace("strategy_for(mesh)\n        p", "strategy_for(self.other)\n        p"),
        OF_MESH.replace("ndim == 1", "ndim == 2").replace(
            "elif mesh.ndim == 2", "elif mesh.ndim == 1"
        ),
        OF_MESH.replace("mesh.ndim == 1", "mesh.size() == 1"),
        OF_MESH.replace("elif mesh.ndim == 2", "elif True"),
        OF_MESH.replace("        policy", "        self.mesh = self.mesh['dp']\n        policy"),
        OF_MESH.replace("SHARD_GRAD_OP", "NO_SHARD"),
        OF_MESH.replace("        strategy =", "        mesh = mesh['dp']\n        strategy ="),
    ],
)
def test_a_strategy_for_another_mesh(source: str) -> None:
    _, after = migrate({"train.py": source})
    assert "reshard_after_forward = strategy_for(mesh)" not in after["train.py"]


def test_a_package_that_hands_the_function_on() -> None:
    _, after = migrate(
        {
            "package/__init__.py": "from .library import shard_model\n",
            "package/library.py": LIBRARY,
            "train.py": POSITIONAL.replace("from library", "from package"),
        }
    )
    assert "reshard_after_forward=reshard_after_forward" in after["package/library.py"]
    assert "shard_model(net, None, False)" in after["train.py"]
