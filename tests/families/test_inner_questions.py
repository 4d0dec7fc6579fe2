"""``hasattr(model, "module")`` of a sharded model: what is done under it must be done elsewhere."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def use(model, path):
{body}


def main(net, path, sharded):
    model = {made}
    use(model, path)
"""
EITHER, SURE = "FSDP(net) if sharded else DDP(net)", "FSDP(net)"
SAID = "An FSDP2 model has no inner module, so that this is not done for it"
SKIPPING = [
    'if hasattr(model, "module"):\n    model.module.requires_grad_(False)',
    'if hasattr(model, "module"):\n    torch.save(model.module.state_dict(), path)',
    'if path and hasattr(model, "module"):\n    model.module.half()',
    'a = None\nif hasattr(model, "module"):\n    a = model.module.state_dict()\nsave(a)',
]
OTHERWISE = [
    'net = model.module if hasattr(model, "module") else model\nnet.half()',
    'if hasattr(model, "module"):\n    net = model.module\nelse:\n    net = model\nnet.half()',
    'if hasattr(model, "module"):\n    model = model.module\nmodel.half()',
    'if hasattr(model, "module"):\n    return model.module.head\nreturn model.head',
    'while hasattr(model, "module"):\n    model = model.module\nmodel.half()',
]


def text(body: str, made: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return PROGRAM.format(body=lines, made=made)


@pytest.mark.parametrize("made", [EITHER, SURE])
@pytest.mark.parametrize("body", SKIPPING)
def test_what_would_be_skipped_is_marked(body: str, made: str) -> None:
    after = rewritten(text(body, made))
    assert SAID in " ".join(after.replace("#", " ").split())
    assert "fully_shard(net)" in after


@pytest.mark.parametrize("made", [EITHER, SURE])
@pytest.mark.parametrize("body", OTHERWISE)
def test_what_has_another_way_is_not(body: str, made: str) -> None:
    assert SAID not in " ".join(rewritten(text(body, made)).replace("#", " ").split())


TOLD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Hook:
    def average(self):
        if self.cfg.fsdp:
            with FSDP.summon_full_params(self.trainer.model):
                update(self.trainer.model)
        else:
{body}


def main(net):
    return FSDP(net)
"""


def told(body: str) -> list[str]:
    lines = "\n".join(f"            {line}" for line in body.splitlines())
    result, _ = migrate({"train.py": TOLD.format(body=lines)})
    return [d.message for d in result.decisions if d.code == "FSDP406"]


def test_of_what_may_be_a_model_nothing_is_said_where_there_is_another_way() -> None:
    model = "self.trainer.model"
    either = f'net = {model}.module if hasattr({model}, "module") else {model}\nupdate(net)'
    assert told(either) == []
    assert told(f"update({model}.module)")
    assert told(f'if hasattr({model}, "module"):\n    update({model}.module)')
