"""What is given to a function that wraps, beside its model, is not the model."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build_optimizer(model, config):
    groups = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(groups, lr=config.lr)


"""
WRAPS = """\
def parallelize(model, config):
    return FSDP(model, use_orig_params=True, limit_all_gathers=config.limit)


"""
ON_EITHER_WAY = """\
class Trainer:
    def start(self, model, resumes):
        if not resumes:
            self.model = parallelize(model, self.config)
            self.optimizer = build_optimizer(self.model, self.config)
        else:
            model.load()
            self.model = parallelize(model, self.config)
            self.optimizer = build_optimizer(self.model, self.config)

    def step(self):
        self.optimizer.step()
"""
BY_KEYWORD = """\
def main(net, other, config):
    net = parallelize(net, config)
    optimizer = build_optimizer(net, config)
    other = parallelize(model=other, config=config)
    optimizer.step()
    return net, other
"""
TOO_EARLY = """\
class Trainer:
    def start(self, model):
        self.optimizer = build_optimizer(model, self.config)
        if self.config.sharded:
            model = parallelize(model, self.config)
        self.model = model

    def step(self):
        self.optimizer.step()
"""
TOO_EARLY_BY_KEYWORD = """\
def main(net, config):
    optimizer = build_optimizer(net, config)
    if config.sharded:
        net = parallelize(config=config, model=net)
    optimizer.step()
    return net
"""


@pytest.mark.parametrize("program", [ON_EITHER_WAY, BY_KEYWORD])
def test_settings_that_two_wraps_share_hold_nothing_back(program: str) -> None:
    result, _ = migrate({"train.py": HEAD + WRAPS + program})
    assert worst(result) is not Outcome.LEFT


@pytest.mark.parametrize("program", [TOO_EARLY, TOO_EARLY_BY_KEYWORD])
def test_parameters_of_the_model_itself_are_taken_behind_the_wrap(program: str) -> None:
    result, after = migrate({"train.py": HEAD + WRAPS + program})
    assert worst(result) is Outcome.REWRITTEN
    behind = after["train.py"].rindex("build_optimizer(")
    assert after["train.py"].rindex("parallelize(") < behind < after["train.py"].rindex(".step()")
