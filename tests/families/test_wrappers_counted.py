"""Numbers, texts and names in which FSDP1's wrappers were: marked where something depends on them.

Of a model with two units, measured on two ranks with torch 2.13: ``modules()`` gave 10 modules, and
gives 7; ``children()`` 1 and 2; ``type(model).__name__`` is ``FSDPNet``, no longer
``FullyShardedDataParallel``; ``repr(model)`` has the same names.
"""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import hashlib

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])


net = Net()
seen = {}
plain = Net()
model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
"""
HOOK = "def hook(module, args, output):\n    {}\n\n\nmodel.register_forward_hook(hook)\n"
COUNTED = {
    "a branch": "count = len(list(model.named_modules()))\nif count > 3:\n    seen[1] = 2\n",
    "a file": 'count = sum(1 for _ in model.modules())\nopen(f"{count}.txt")\n',
    "a key": "seen[len([*model.modules()])] = 1\n",
    "a share": "rate = 0.1 / len([m for m in model.modules()])\n",
    "a place": "list(model.modules())[2].requires_grad_(False)\n",
    "places in a loop": (
        "for place, part in enumerate(model.modules()):\n"
        '    torch.save(part.training, f"{place}.pt")\n'
    ),
    "places by names": (
        "table = {place: name for place, (name, _) in enumerate(model.named_modules())}\n"
    ),
}
NOT_COUNTED = {
    "printed": "print(len(list(model.modules())))\n",
    "printed by a name": 'count = len(list(model.modules()))\nprint(f"{count} modules")\n',
    "a loop that prints": (
        "for place, part in enumerate(model.modules()):\n    print(place)\n    part.train()\n"
    ),
    "of one class": "seen[sum(isinstance(m, nn.Linear) for m in model.modules())] = 1\n",
    "those of one class": (
        "count = len([m for m in model.modules() if isinstance(m, nn.Linear)])\nseen[count] = 1\n"
    ),
    "parameters": "count = len(list(model.parameters()))\nseen[count] = 1\n",
    "what is inside": "seen[len(list(model.module.modules()))] = 1\n",
    "another model": "seen[len(list(plain.modules()))] = 1\n",
    "a loop": "for part in model.modules():\n    part.train()\n",
}
KEYS = {
    "a hash": "key = hashlib.md5(repr(model).encode()).hexdigest()\n",
    "a hash by a name": "text = str(model)\nkey = hashlib.sha256(text.encode()).hexdigest()\n",
    "a key": "seen[str(model)] = 1\n",
    "a comparison": 'same = repr(model) == open("model.txt").read()\n',
    "a wrapper": 'sharded = "_fsdp_wrapped_module" in str(model)\n',
    "a class": 'sharded = "FSDP" in repr(model)\n',
}
NO_KEYS = {
    "printed": "print(model)\nprint(repr(model))\n",
    "written": 'with open("model.txt", "w") as out:\n    out.write(str(model))\n',
    "a class in both": 'has_linear = "Linear" in str(model)\n',
    "another model": "seen[str(plain)] = 1\n",
    "a value": 'seen["model"] = repr(model)\n',
}
NAMES = {
    "a key": HOOK.format("seen[type(module).__name__] = output"),
    "a file": HOOK.format('torch.save(output, f"{module.__class__.__name__}.pt")'),
    "a part of it": HOOK.format('seen[0] = "Net" in type(module).__name__'),
    "torch's own way": HOOK.format("seen[module._get_name()] = output"),
    "a lambda": "model.register_forward_pre_hook(lambda m, _: seen.update({m._get_name(): 1}))\n",
    "the model's": "seen[model._get_name()] = 1\n",
}
NO_NAMES = {
    "printed": HOOK.format("print(type(module).__name__)"),
    "its own class, which it has in neither": HOOK.format(
        'seen[0] = module.__class__.__name__ == "Net"'
    ),
    "of another model": HOOK.format("seen[type(module).__name__] = 1").replace("model.", "plain."),
    "something else": HOOK.format("seen[0] = output"),
    "the other model's": "seen[plain._get_name()] = 1\n",
}


def _markers(code: str, rule: str) -> int:
    _, after = migrate({"train.py": HEAD + code})
    return after["train.py"].count(f"TODO(fsdp-migrate {rule})")


@pytest.mark.parametrize("way", COUNTED)
def test_a_number_that_something_depends_on_is_marked(way: str) -> None:
    assert _markers(COUNTED[way], "FSDP425") == 1


@pytest.mark.parametrize("way", NOT_COUNTED)
def test_other_numbers_are_not(way: str) -> None:
    assert _markers(NOT_COUNTED[way], "FSDP425") == 0


@pytest.mark.parametrize("way", KEYS)
def test_a_text_that_something_is_found_by_is_marked(way: str) -> None:
    assert _markers(KEYS[way], "FSDP413") == 1


@pytest.mark.parametrize("way", NO_KEYS)
def test_other_texts_are_not(way: str) -> None:
    assert _markers(NO_KEYS[way], "FSDP413") == 0


@pytest.mark.parametrize("way", NAMES)
def test_the_name_of_a_class_in_a_hook_on_the_model_is_marked(way: str) -> None:
    assert _markers(NAMES[way], "FSDP413") == 1


@pytest.mark.parametrize("way", NO_NAMES)
def test_other_names_are_not(way: str) -> None:
    assert _markers(NO_NAMES[way], "FSDP413") == 0
