"""What a name was given last, where a flag tells which of its assignments have run."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import os
import sys

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""
FLAGS = {
    "a number that is not there": 'int(os.environ.get("RANK", -1)) != -1',
    "a number of the environment": 'int(os.environ.get("WORLD_SIZE", "1")) > 1',
    "a number that must be there": 'int(os.environ["WORLD_SIZE"]) > 1',
    "whether it is there": '"RANK" in os.environ',
    "not None": 'os.environ.get("RANK") is not None',
    "getenv": 'os.getenv("LOCAL_RANK") is not None',
    "bool": 'bool(int(os.environ.get("DDP", 0)))',
    "devices": "torch.cuda.device_count() > 1",
    "arguments": "len(sys.argv) > 1",
}
PROGRAM = (
    HEAD
    + """\
ddp = {}
model = nn.Linear(4, 4)
if ddp:
    model = FSDP(model)
raw_model = model.module if ddp else model
print(raw_model.in_features)
"""
)


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_the_module_inside_is_the_model_itself(flag: str) -> None:
    _, after = migrate({"train.py": PROGRAM.format(flag)})
    assert "raw_model = model\n" in after["train.py"]


# Under each, ``model`` is FSDP1's for certain where ``x`` is read of it.
CERTAIN = {
    "an else": "if not args.fsdp:\n        print(model)\n    else:\n        x = model.module",
    "within another condition": (
        "if args.fsdp and args.save:\n        x = model.module\n    print(model)"
    ),
    "a condition that comes back": "if not args.fsdp:\n        return\n    x = model.module",
    "and in it another": "if args.fsdp:\n        if args.save:\n            x = model.module",
}
# Under each it may be the plain one, or another since.
UNSURE = {
    "no condition": "x = model.module",
    "another flag": "if args.save:\n        x = model.module",
    "the other way": "if not args.fsdp:\n        x = model.module",
    "the flag is changed": "args.fsdp = True\n    if args.fsdp:\n        x = model.module",
    "one of two flags": "if args.fsdp or args.save:\n        x = model.module",
    "a function inside that may run before": (
        "def inner():\n        if args.fsdp:\n            x = model.module\n    inner()"
    ),
    "a function above its first value sets it": (
        "def reset():\n        nonlocal own\n        own = other()\n    own = model\n"
        "    if args.fsdp:\n        own = FSDP(own)\n    reset()\n"
        "    if args.fsdp:\n        x = own.module"
    ),
    "a function inside sets it": (
        "def reset():\n        nonlocal model\n        model = other()\n    reset()\n"
        "    if args.fsdp:\n        x = model.module"
    ),
    "it is another since": (
        "if args.save:\n        model = other(model)\n    if args.fsdp:\n        x = model.module"
    ),
}
WRAP = "def main(args, model):\n    if args.fsdp:\n        model = FSDP(model)\n    "
OF_SELF = """\
class Trainer:
    def __init__(self, args, net):
        self.args = args
        self.model = net
        if args.fsdp:
            self.model = FSDP(self.model)
{}

    def module(self):
        {}
"""


@pytest.mark.parametrize("use", CERTAIN.values(), ids=CERTAIN)
def test_where_the_flag_holds_it_is_fsdps(use: str) -> None:
    _, after = migrate({"train.py": HEAD + "\n" + WRAP + use + "\n"})
    assert "x = model\n" in after["train.py"]


@pytest.mark.parametrize("use", UNSURE.values(), ids=UNSURE)
def test_where_it_may_not_hold_it_may_be_another(use: str) -> None:
    _, after = migrate({"train.py": HEAD + "\n" + WRAP + use + "\n"})
    assert "x = model\n" not in after["train.py"]
    assert "x = own\n" not in after["train.py"]


def test_wrapped_in_a_loop_or_a_try_it_may_not_have_been() -> None:
    for around in ("for _ in args.times:", "while args.more():"):
        wrap = f"def main(args, model):\n    {around}\n        if args.fsdp:\n            "
        text = wrap + "model = FSDP(model)\n    if args.fsdp:\n        x = model.module\n"
        _, after = migrate({"train.py": HEAD + "\n" + text})
        assert "x = model\n" not in after["train.py"]
    text = (
        "def main(args, model):\n    if args.fsdp:\n        try:\n            model = FSDP(model)\n"
        "        except ValueError:\n            pass\n"
        "    if args.fsdp:\n        x = model.module\n"
    )
    _, after = migrate({"train.py": HEAD + "\n" + text})
    assert "x = model\n" not in after["train.py"]


INSIDE = {
    "the name of the module inside": "raw = model.module\n    print(raw.count())",
    "under a flag": "raw = model.module if args.fsdp else model\n    print(raw.count())",
    "given to a function": "show(model.module)",
    "of a name, given to a function": "raw = model.module\n    show(raw)",
}
NET = """\
class Net(nn.Module):
    def count(self):
        return sum(p.numel() for p in self.parameters())


def show(net):
    print(net.count(), sum(p.numel() for p in net.parameters()))


"""


@pytest.mark.parametrize("use", INSIDE.values(), ids=INSIDE)
def test_numbers_of_the_module_inside_are_told(use: str) -> None:
    """FSDP1's wrapped module had its parameters in pieces, by whatever name it is asked."""
    wrap = WRAP.replace("    if args", "    model = Net()\n    if args").replace(
        "FSDP(model)", "FSDP(model, use_orig_params=True)"
    )
    source = HEAD + "\n" + NET + wrap + f"if args.fsdp:\n        {use}\n"
    source = source.replace("\n    print(raw", "\n        print(raw").replace(
        "\n    show(raw", "\n        show(raw"
    )
    result, _ = migrate({"train.py": source})
    told = {d.site.node.lineno for d in result.decisions if d.code == "FSDP408"}
    assert source[: source.index("p.numel()")].count("\n") + 1 in told


def test_an_attribute_that_init_alone_sets() -> None:
    use = "return self.model.module if self.args.fsdp else self.model"
    _, after = migrate({"train.py": HEAD + "\n" + OF_SELF.format("", use)})
    assert "return self.model\n" in after["train.py"]


def test_an_attribute_that_another_method_sets_as_well() -> None:
    use = "return self.model.module if self.args.fsdp else self.model"
    later = "\n    def restart(self, net):\n        self.model = net"
    _, after = migrate({"train.py": HEAD + "\n" + OF_SELF.format(later, use)})
    assert "return self.model\n" not in after["train.py"]


@pytest.mark.parametrize(
    "store",
    [
        "trainer.model = DDP(net)",
        "setattr(trainer, 'model', DDP(net))",
        "trainer.__dict__['model'] = DDP(net)",
        "vars(trainer).update(model=DDP(net))",
    ],
)
def test_an_attribute_that_somebody_else_may_set(store: str) -> None:
    use = "return self.model.module if self.args.fsdp else self.model"
    main = f"\n\ndef main(args, net):\n    trainer = Trainer(args, net)\n    {store}\n"
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
    source = HEAD + ddp + OF_SELF.format("", use) + main + "    return trainer.module()\n"
    _, after = migrate({"train.py": source})
    assert "return self.model\n" not in after["train.py"]
