"""Scripts that only evaluate: what only training and states feel is no question of theirs."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SCRIPT = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
)

import loading
from nets import Net
{imports}

def main():
    dist.init_process_group("nccl")
    net = Net.pretrained("net.pt")
    model = FSDP(
        net,
        cpu_offload=CPUOffload(offload_params=True),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        sharding_strategy=ShardingStrategy.NO_SHARD,
    )
    {off}
    for batch in loading.batches():
        print(model(batch))
    {more}


if __name__ == "__main__":
    main()
"""
NETS = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x))

    @classmethod
    def pretrained(cls, path):
        net = cls()
        for part in net.children():
            part.load_state_dict(torch.load(path))
        return net

    def save(self, path):
        torch.save(self.state_dict(), path)

    def fitted(self, batches):
        for batch in batches:
            self(batch).sum().backward()


class Trainer:
    def __init__(self, net):
        self.net = net

    def load(self, path):
        self.net.load_state_dict(torch.load(path))

    def train(self, batches):
        for batch in batches:
            self.net(batch).sum().backward()

    def test(self, batches):
        for batch in batches:
            self.net(batch)


if __name__ == "__main__":
    Net().fitted([torch.ones(4)])
"""
LOADING = "import torch\n\n\ndef batches():\n    return torch.load('batches.pt')\n"
OFF = "torch.set_grad_enabled(False)"
CODES = ("FSDP115", "FSDP201", "FSDP204")


def markers(more: str = "pass", off: str = OFF, imports: str = "", **files: str) -> list[str]:
    """The codes of the markers in the script, of those three."""
    source = SCRIPT.format(more=more, off=off, imports=imports)
    named = {f"{name}.py": text for name, text in files.items()}
    _, after = migrate({"run.py": source, "nets.py": NETS, "loading.py": LOADING, **named})
    return [code for code in CODES if f"TODO(fsdp-migrate {code})" in after["run.py"]]


def test_what_the_script_never_runs_is_not_asked() -> None:
    """Methods of what it imports that train and save are there all the same, and a main block."""
    assert markers() == []
    assert markers(off="torch.inference_mode().__enter__()") == []


@pytest.mark.parametrize(
    ("more", "imports"),
    [
        ("model(batch).sum().backward()", ""),
        ("net.fitted(loading.batches())", ""),
        ("getattr(net, 'fitted')(loading.batches())", ""),
        ("torch.save(model.state_dict(), 'net.pt')", ""),
        ("with FSDP.summon_full_params(model): print(net.a.weight)", ""),
        ("Trainer(model).train(loading.batches())", "from nets import Trainer"),
        ("Trainer(model).load('net.pt')", "from nets import Trainer"),
        ("Trainer(model).predict()", "from transformers import Trainer"),
        ("learn(model)", "from nets import Trainer as T; learn = lambda m: T(m).train([])"),
    ],
)
def test_what_it_runs_may_train_or_save(more: str, imports: str) -> None:
    assert markers(more, imports=imports) == list(CODES)


def test_a_trainer_of_the_projects_own_that_only_tests() -> None:
    more = "Trainer(model).test(loading.batches())"
    assert markers(more, imports="from nets import Trainer") == []
    derived = "from nets import Trainer\n\n\nclass Tester(Trainer):\n    pass\n"
    assert markers("Tester(model).test([])", imports=derived) == []
    hooks = "class Tester(Base):\n    def on_end(self):\n        loss.backward()\n"
    known = f"from lib import Base\n\n\n{hooks}"
    assert markers("Tester(model).test([])", imports=known) == list(CODES)


def test_gradients_must_be_off_and_nobody_may_import_the_script() -> None:
    assert markers(off="pass") == list(CODES)
    assert markers(other="import run\n\nrun.main()\n") == list(CODES)


def test_decorators_may_hand_a_function_to_others() -> None:
    hooked = "import hub\n\n\n@hub.register\ndef step(loss):\n    loss.backward()\n"
    assert markers(imports="import hooked", hooked=hooked) == list(CODES)
    method = "class Hook:\n    def step(self, loss):\n        loss.backward()\n"
    registered = f"import hub\n\n\n@hub.register\n{method}"
    assert markers(imports="import hooked", hooked=registered) == list(CODES)
    plain = "import torch\n\n\n@torch.no_grad()\ndef step(loss):\n    loss.backward()\n"
    assert markers(imports="import hooked", hooked=plain) == []
