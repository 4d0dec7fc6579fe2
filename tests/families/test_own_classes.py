"""Questions for the class that a sharded model was made of, by how the model comes to them."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, rewritten

NETS = """\
from torch import nn


class Block(nn.Linear):
    pass


class Base(nn.Module):
    pass


class Net(Base):
    def __init__(self):
        super().__init__()
        self.first = Block(4, 4)
        self.blocks = nn.ModuleList([Block(4, 4), Block(4, 4)])

    def forward(self, x):
{forward}
        return self.first(x)


class Other(nn.Module):
    pass
"""
PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as DDP
from nets import Base, Block, Net, Other


def unwrap(model):
    if isinstance(model, (FSDP, DDP)):
        return model.module
    return model


def strip(model):
    return getattr(model, "module", model)


def build(args):
    net = Net()
    if args.fsdp:
        model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({{Block}}))
    elif args.ddp:
        model = DDP(net)
    else:
        model = net
    return net, model


def main(args):
    net, model = build(args)
    {use}
    print({asked})
"""


def migrated(asked: str, use: str = "pass", forward: str = "        pass") -> dict[str, str]:
    files = {
        "train.py": PROGRAM.format(asked=asked, use=use),
        "nets.py": NETS.format(forward=forward),
    }
    result, after = migrate(files)
    assert not result.problems
    assert "fully_shard(" in after["train.py"]
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    return after


SHARDED = "not isinstance({}, FSDPModule)"
ASKED = {
    "isinstance(model, Net)": "isinstance(model, Net) and {not}",
    "isinstance(model, Base)": "isinstance(model, Base) and {not}",
    "isinstance(model, (Other, Net))": "isinstance(model, (Other, Net)) and {not}",
    "isinstance(model, Other | Net)": "isinstance(model, Other | Net) and {not}",
    "issubclass(type(model), Net)": "issubclass(type(model), Net) and {not}",
    "issubclass(model.__class__, Net)": "issubclass(model.__class__, Net) and {not}",
    "not isinstance(model, Net)": "not isinstance(model, Net) or isinstance(model, FSDPModule)",
    "isinstance(model, Net) and args.log": "isinstance(model, Net) and {not} and args.log",
    "args.log or isinstance(model, Net)": "args.log or (isinstance(model, Net) and {not})",
    "isinstance(model, Net) == args.log": "(isinstance(model, Net) and {not}) == args.log",
    "not isinstance(model, Net) == args.log": "not (isinstance(model, Net) and {not}) == args.log",
    "args.log and not isinstance(model, Net)": (
        "args.log and (not isinstance(model, Net) or isinstance(model, FSDPModule))"
    ),
}


def flat(text: str) -> str:
    """Without the line breaks that a longer line got."""
    return " ".join(text.split()).replace("( ", "(").replace(" )", ")")


@pytest.mark.parametrize("asked", ASKED)
def test_the_answer_stays(asked: str) -> None:
    wanted = ASKED[asked].replace("{not}", "not isinstance(model, FSDPModule)")
    assert f"print({wanted})" in flat(migrated(asked)["train.py"])


# As it stands, or as it reads when what it is asked of has been migrated.
KEPT = {
    "a class it is not of": ("isinstance(model, Other)", "pass"),
    "any module": ("isinstance(model, nn.Module)", "pass"),
    "any module, among others": ("isinstance(model, (Net, nn.Module))", "pass"),
    "another wrapper": ("isinstance(model, DDP)", "pass"),
    "no module": ("isinstance(model, (str, torch.Tensor))", "pass"),
    "the module itself": ("isinstance(net, Net)", "pass"),
    "the exact class": ("type(model) is Net", "pass"),
    "what wrappers are taken off": ("isinstance(inner, Net)", "inner = unwrap(model)"),
    "what one is taken off": ("isinstance(inner, Net)", "inner = strip(model)"),
    "a call that takes them off": ("isinstance(unwrap(model), Net)", "pass"),
    "modules of a model": ("[isinstance(m, Net) for m in model.modules()]", "pass"),
    "blocks of a model": ("[isinstance(m, Block) for m in model.modules()]", "pass"),
    "modules with names": ("[isinstance(m, Net) for _, m in model.named_modules()]", "pass"),
    "an assertion": ("model", "assert isinstance(model, Net)"),
    "an error": ("model", "if not isinstance(model, Net): raise TypeError(model)"),
}


@pytest.mark.parametrize("kept", KEPT)
def test_it_is_left_alone(kept: str) -> None:
    asked, use = KEPT[kept]
    after = migrated(asked, use)["train.py"]
    assert f"    print({asked})" in after
    assert "FSDP424" not in after
    assert "and not isinstance" not in after


FORWARDS = {
    "a loop": ("for m in self.blocks:\n            y = {}", True),
    "a loop with places": ("for i, m in enumerate(self.blocks):\n            y = {}", True),
    "children": ("for m in self.blocks.children():\n            y = {}", True),
    "an element": ("m = self.blocks[0]\n        y = {}", True),
    "an attribute": ("m = self.first\n        y = {}", True),
    "every module": ("for m in self.modules():\n            y = {}", False),
    "every module of a part": ("for m in self.blocks.modules():\n            y = {}", False),
}


@pytest.mark.parametrize("forward", FORWARDS)
def test_units_are_asked_for_their_class(forward: str) -> None:
    text, changed = FORWARDS[forward]
    asked = "isinstance(m, Block)"
    after = migrated("1", forward=f"        {text.format(asked)}")["nets.py"]
    assert (f"y = {asked} and not isinstance(m, FSDPModule)\n" in after) is changed
    assert (f"y = {asked}\n" in after) is not changed


def test_parts_that_are_no_units_are_left_alone() -> None:
    forward = "        for m in self.blocks:\n            y = isinstance(m, (Other, nn.Linear))"
    assert "FSDPModule" in migrated("1", forward=forward)["nets.py"]  # Block is derived from Linear
    forward = "        for m in self.blocks:\n            y = isinstance(m, (Other, nn.Conv2d))"
    assert "FSDPModule" not in migrated("1", forward=forward)["nets.py"]
    forward = "        y = isinstance(x, Block)"
    assert "FSDPModule" not in migrated("1", forward=forward)["nets.py"]


def test_what_follows_a_yes_is_for_other_objects() -> None:
    use = "if isinstance(model, Net):\n        torch.save(model.state_dict(), 'net.pt')"
    after = migrated("1", use)["train.py"]
    assert "torch.save(model.state_dict(), 'net.pt')" in after
    assert "isinstance(model, Net) and not isinstance(model, FSDPModule)" in after


def test_what_wrappers_were_taken_off_is_still_the_model() -> None:
    use = (
        "inner = unwrap(model)\n    if isinstance(inner, Net): torch.save(inner.state_dict(), 'x')"
    )
    files = {"train.py": PROGRAM.format(asked="1", use=use), "nets.py": NETS.format(forward="")}
    result, _ = migrate(files)
    assert "state_dict" in " ".join(str(d.site.construct) for d in result.decisions)


def test_a_second_run_adds_nothing() -> None:
    first = migrated("isinstance(model, Net), not isinstance(model, Net)")
    further = f"{first['train.py']}\n\ndef more(args):\n    main(FSDP(Net()))\n".replace(
        "from torch import nn",
        "from torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    )
    _, after = migrate({"train.py": further, "nets.py": first["nets.py"]})
    assert after["train.py"].count("FSDPModule)") == first["train.py"].count("FSDPModule)")


def test_imports_of_what_is_asked_for_stay() -> None:
    source = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from nets import Net


def build(net):
    model = FSDP(net)
    return isinstance(model, Net)
"""
    after = rewritten(source)
    assert "from nets import Net" in after
    assert "isinstance(model, Net) and not isinstance(model, FSDPModule)" in after


MARKED = {
    "a part of its name": "'Net' in type(model).__name__",
    "none of its name": "'Net' not in model.__class__.__qualname__",
    "the classes it is derived from": "Net in type(model).__mro__",
}


@pytest.mark.parametrize("asked", MARKED)
def test_what_is_asked_otherwise_is_marked(asked: str) -> None:
    after = migrated("1", f"found = {MARKED[asked]}")["train.py"]
    assert "TODO(fsdp-migrate FSDP413)" in after
    assert f"found = {MARKED[asked]}\n" in after


def test_a_part_of_the_name_of_a_block_is_one_of_its_new_name() -> None:
    use = "found = ['Block' in type(m).__name__ for m in model.modules()]"
    assert "FSDP413" not in migrated("1", use)["train.py"]


def test_a_class_that_is_not_known_is_marked() -> None:
    after = migrated("isinstance(model, getattr(torch, args.kind))")["train.py"]
    assert "TODO(fsdp-migrate FSDP424): The class that is asked for is not known here" in after
    after = migrated("isinstance(net, getattr(torch, args.kind))")["train.py"]
    assert "FSDP424" not in after


REACHED = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn import Sequential
from torch.nn.parallel import DistributedDataParallel as DDP


def reach(root, path):
    module = root
    for name in path:
        if isinstance(module, (DDP, FSDP)):
            {taken}
            if isinstance(module, Sequential) and name.isnumeric():
                module = module[int(name)]
        else:
            module = getattr(module, name)
    return module


def wrap(model, config):
    if config.key == "fsdp":
        model = FSDP(model, **config.arguments)
    elif config.key == "ddp":
        model = DDP(model)
    return model


class Box:
    def __init__(self, net, config):
        self.net = net
        self.model = wrap(Sequential(reach(net, "a"), reach(net, "b")), config)
        self.part = reach(self.model, config.path)
"""


def is_told_apart(taken: str) -> bool:
    _, after = migrate({"train.py": REACHED.format(taken=taken)})
    after["train.py"] = " ".join(after["train.py"].split())
    asked = "isinstance(module, Sequential) and name.isnumeric()"
    apart = "isinstance(module, Sequential) and not isinstance(module, FSDPModule)"
    assert (asked in after["train.py"]) is not (apart in after["train.py"])
    return apart in after["train.py"]


def test_what_a_wrapper_was_taken_off_is_asked_as_before() -> None:
    assert not is_told_apart("module = module.module")


@pytest.mark.parametrize(
    "taken", ["pass", "(module, *rest) = module.module", "net = module.module"]
)
def test_what_may_be_a_wrapper_still_is_told_apart(taken: str) -> None:
    assert is_told_apart(taken)
