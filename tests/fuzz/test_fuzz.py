"""A sample of what ``make fuzz`` does for an hour."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz import judging, making

SEEDS = range(3)
EACH = 25


@pytest.mark.parametrize("seed", SEEDS)
def test_accidents_are_answered(seed: int) -> None:
    wrong = {
        f"{accident.name} ({accident.way})": found
        for accident in islice(making.accidents(seed), EACH)
        if (found := list(judging.faults(accident.text)))
    }
    assert not wrong


def test_a_seed_makes_always_the_same() -> None:
    assert list(islice(making.accidents(7), 5)) == list(islice(making.accidents(7), 5))


BESIDE = """\
from torch.distributed import fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""


@pytest.mark.parametrize(
    "text",
    [
        # A test of a handle at the top of a file, and a member of an enum that nothing imports.
        "if module._handle:\n    _runtime_utils._reshard(module, module._handle)\nFSDP(net)\n",
        "class Saver:\n    def save(self, model):\n"
        "        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "            return model.state_dict()\n\n\nFSDP(net)\n",
        # Two rules say the same of two statements in a row, and the next run asks but one.
        "class Counted(FSDP):\n    def check_is_root(self):\n        return True\n\n\n"
        "def build(net, other):\n    model = Counted(net)\n"
        "    if 'FSDP' in type(model).__name__:\n        print('sharded')\n"
        "    model.clip_grad_norm_(1.0)\n    return model, FSDP(other)\n",
        # What the first run wrote into the support file is no site of the next.
        "def build(model, group, other):\n    wrap = functools.partial(FSDP, process_group=group)\n"
        "    group = other\n    model = FSDP(model, mixed_precisions=None)\n"
        "    return wrap(model), group\n",
        # A class whose constructor is FSDP1's own has no call of it in the file.
        "class Model(FSDP):\n    pass\n\n\nclass Net:\n    def __init__(self):\n"
        "        net.load_state_dict(state)\n\n\ndef main():\n    return Model(Net())\n\n\n"
        "main()\n",
        # What is left stands below a line that is written for its neighbour.
        "from torch.distributed.fsdp._traversal_utils import _get_fsdp_handles\n\n\n"
        "def average(mean, model):\n    mean, model = FSDP(mean), FSDP(model)\n"
        "    ours, theirs = _get_fsdp_handles(mean), _get_fsdp_handles(model)\n"
        "    old = [h.flat_param.data for h in ours]\n    torch._foreach_mul_(old, 0.9)\n"
        "    return [h.flat_param.data for name in theirs]\n",
        # Names that attributes, comments and functions beside it have, too.
        "def place(device):\n    kind = torch.device(device)\n"
        "    return FSDP(net, device_id=kind)\n\n\n"
        "def build(model):\n    device = torch.device('cpu')\n"
        "    settings = {'device_id': device}\n    return FSDP(model, **settings)\n",
        # A name that is deleted in between.
        "def resume(net, optimizer, saved):\n    model = FSDP(net)\n"
        "    state = FSDP.scatter_full_optim_state_dict(saved, model)\n"
        "    optimizer.load_state_dict(state)\n    del state\n    state = len(saved)\n"
        "    state = FSDP.scatter_full_optim_state_dict(saved, model)\n"
        "    optimizer.load_state_dict(state)\n    del state\n    return model\n",
        # A member that FSDP1's class has not, in an argument that is written down again.
        "def build(net):\n    return FSDP(net, device_id=FSDP.device('cpu'))\n",
        # A name that nothing binds, and that what is written imports.
        "def build(net):\n    return FSDP(net)\n\n\n"
        "def shard(net, skipped):\n    return fully_shard(net, ignore=skipped)\n",
        # A function that takes the name of an import, whose other uses go.
        "from torch.distributed.fsdp import StateDictType\n\n\n"
        "def save(model):\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        return model.state_dict()\n\n\n"
        "def StateDictType(net):\n    return save(FSDP(net))\n",
        # An object of FSDP1's where accelerate's plugin takes none.
        "from accelerate import FullyShardedDataParallelPlugin\n"
        "from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy\n\n"
        "FullyShardedDataParallelPlugin(min_num_params=size_based_auto_wrap_policy)\n",
        # A choice between FSDP1's class and itself.
        "def build(net, flag):\n"
        "    return (FSDP if flag else FSDP)(net.cuda(), process_group=group)\n",
        # What took FSDP1's place, for the next run on a model that is left.
        "from layers import Block\n\n\ndef step(model, batch):\n"
        "    model.tower.requires_grad_(False)\n"
        "    model = FSDP(model, ignored_modules=[model.tower])\n"
        "    model(batch).sum().backward()\n    return model.clip_grad_norm_(1.0)\n\n\n"
        "model = FSDP(model, auto_wrap_policy=[Block])\n",
        # A branch for FSDP1's models, in which one is made.
        "from torch.distributed.fsdp import FSDPModule\n\n\ndef version(model):\n"
        "    if isinstance(model, FSDP):\n        def whole(net):\n"
        "            return FSDP(net)\n        return 1\n"
        "    elif isinstance(model, FSDPModule):\n        return 2\n    return 0\n\n\n"
        "def build(net):\n    model = FSDP(net)\n    version(model)\n    return model\n",
        # A dictionary to which a branch adds what none of the calls gets.
        "def build(model, args, other):\n    params = dict(device_id=torch.cuda.current_device())\n"
        "    if args.wrap:\n        model = FSDP(model, **params)\n    else:\n"
        "        params['device_id'] = 0\n        model = FSDP(model, other)\n    return model\n",
        # A name of FSDP1's in an argument that both classes of a choice get.
        "def build(net, flag):\n"
        "    return (DDP if flag else FSDP)(net.cuda(), process_group=FSDP.group)\n",
        # Settings of FSDP1's in arguments that they are none of.
        "def shard(model, args):\n    return FSDP(\n        model,\n        fsdp.ShardingStrategy."
        "SHARD_GRAD_OP if args.flag else fsdp.ShardingStrategy.FULL_SHARD,\n    )\n",
        "def shard(model):\n    model = FSDP(\n        model, auto_wrap_policy="
        "fsdp.wrap.ModuleWrapPolicy({fsdp.ShardedOptimStateDictConfig})\n    )\n    return model\n",
        # What is said of a part of a statement that goes, and that its neighbour has now.
        "def load(net, optimizer, kind, settings, states):\n    model = FSDP(net)\n"
        "    with FSDP.state_dict_type(model, fsdp.StateDictType.FULL_STATE_DICT):\n"
        "        model.load_state_dict(states['model'])\n"
        "        state = FSDP.optim_state_dict_to_load(model, optimizer, states[FSDP])\n"
        "    optimizer.load_state_dict(state)\n",
        # A name of an argument that gets another value, whose uses go.
        "def mean(net, model):\n    model = FSDP(net)\n"
        "    torch.distributed.all_reduce(loss, group=model.process_group)\n",
        "def save(net, path, policy=None):\n    model = FSDP(net)\n    if path:\n"
        "        policy = fsdp.FullStateDictConfig(offload_to_cpu=True)\n"
        "    with FSDP.state_dict_type(model, fsdp.StateDictType.FULL_STATE_DICT, policy):\n"
        "        print(path)\n",
        "from torch.distributed.fsdp import FullStateDictConfig, StateDictType\n\n\n"
        "def save(net, policy=None):\n    model = FSDP(net)\n    if not FSDP:\n"
        "        policy = FullStateDictConfig(offload_to_cpu=True)\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):\n"
        "        state = save()\n    return state\n",
        # Functions that ask for a name in front of what binds it, and stop there.
        "def build(net, wide):\n    if torch.__version__ < '1.13':\n        model = FSDP(net)\n"
        "    elif wide:\n        return model.state_dict()\n        model = FSDP(net)\n"
        "    else:\n        model = FSDP(net.half())\n    return model\n",
        "def mean(net, loss):\n    print(model)\n    model = FSDP(net)\n"
        "    torch.distributed.all_reduce(loss, group=model.process_group)\n    return loss\n",
        "def resume(net, saved):\n    state = load(state)\n    model = FSDP(net)\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n"
        "    state = FSDP.scatter_full_optim_state_dict(saved, model)\n"
        "    optimizer.load_state_dict(state)\n",
    ],
    ids=[
        *("a handle", "an enum", "two in a row", "support", "no constructor", "one of two left"),
        *("names beside it", "deleted", "an absent member", "lent", "taken", "a plugin"),
        *("a choice of one", "held by another", "made in its branch"),
        *("an entry of no call", "an argument of both", "a strategy as a group"),
        *("a setting as a class", "what its neighbour has", "an argument"),
        *("an argument under a condition", "under a test for FSDP1"),
        *("asked for in its branch", "asked for first", "asked for by its own value"),
    ],
)
def test_what_it_found(text: str) -> None:
    assert not list(judging.faults(f"import functools\n\nimport torch\n{BESIDE}{text}"))


def test_names_that_nothing_binds_are_torchs() -> None:
    """What is written imports ``torch``, and a next run would know what the others are."""
    text = (
        "def free(net):\n    model = FSDP(net)\n    for m in FSDP.fsdp_modules(model):\n"
        "        if m._has_params:\n"
        "            torch.distributed.fsdp._runtime_utils._reshard(m, m._handle, True)\n\n\n"
        "def resume(net, optimizer, saved):\n    model = FSDP(net)\n"
        "    state = FSDP.scatter_full_optim_state_dict(saved, model)\n"
        "    optimizer.load_state_dict(state)\n"
    )
    assert not list(judging.faults(f"{BESIDE}{text}"))


def test_names_of_parameters_beside_a_setting_of_a_library() -> None:
    text = (
        "import lightning as L\nimport torch\n\n\nclass Net(L.LightningModule):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.linear = torch.nn.Linear(4, 4)\n\n"
        "    def training_step(self, batch, index):\n        return self.linear(batch).sum()\n\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.parameters(), lr=0.1)\n\n\n"
        "def read(path):\n    return {n.replace('_fsdp_wrapped_module.', ''): v"
        " for n, v in torch.load(path).items()}\n\n\n"
        "trainer = L.Trainer(accelerator='gpu', num_nodes=2, strategy='fsdp')\n"
        "trainer.fit(Net(), loader)\n"
    )
    assert not list(judging.faults(text))


CALLED_IN_FRONT = """\
import lightning as L
if __name__ == '__main__':
    main()
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from layers import Block


class Net(L.LightningModule):
    def training_step(self, batch, index):
        return self.layers(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(loader):
    strategy = FSDPStrategy(auto_wrap_policy=ModuleWrapPolicy({Block}))
    trainer = L.Trainer(accelerator="gpu", devices=8, strategy=strategy)
    trainer.fit(Net(), loader)
"""


def test_a_call_in_front_of_its_function_asks_for_no_import() -> None:
    assert not list(judging.faults(CALLED_IN_FRONT))


def test_an_import_that_a_function_hides_was_unused_before() -> None:
    before = "import torch\n\n\ndef f(a):\n    with a:\n        torch = a\n    print(torch)\n"
    after = "import torch\n\n\ndef f(a):\n    torch = a\n    print(torch)\n"
    assert not list(judging.names({"program.py": before}, {"program.py": after}))


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (  # which the function below asked for
            "import torch\n\n\ndef g():\n    return torch\n\n\n"
            "def f(a):\n    torch = a\n    print(torch)\n",
            "import torch\n\n\ndef f(a):\n    torch = a\n    print(torch)\n",
            judging.UNUSED,
        ),
        ("x = 1\n\n\ndef f():\n    print(x)\n", "def f():\n    print(x)\n", judging.UNBOUND),
        (
            "def f(a):\n    x = a\n    print(x)\n",
            "def f(a):\n    x = a\n    print(a)\n",
            judging.UNUSED,
        ),
    ],
)
def test_the_judge_still_sees(before: str, after: str, kind: str) -> None:
    said = list(judging.names({"program.py": before}, {"program.py": after}))
    assert {each for each, _ in said} == {kind}
