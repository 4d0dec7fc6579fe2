"""Kinds of state that the context around a call says, and what keeps a call from asking there."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def state_of(model):
    return model.state_dict()


def save(model, settings, path):
    with FSDP.state_dict_type(model, settings.kind, settings.config):
        BODY
    torch.save(state, path)


def train(net, settings):
    model = FSDP(net)
    save(model, settings, "model.pt")
"""
ASKED = 'full_state_dict=settings.kind.name == "FULL_STATE_DICT"'
OFFLOADED = 'cpu_offload=getattr(settings.config, "offload_to_cpu", False)'


def after(body: str, more: str = "") -> str:
    result, files = migrate({"train.py": PROGRAM.replace("BODY", body) + more})
    assert not result.problems
    return files["train.py"]


def test_a_call_in_the_block_asks_what_the_context_was_given() -> None:
    text = after("state = model.state_dict()")
    assert ASKED in text
    assert OFFLOADED in text
    assert "state_dict_type" not in text


@pytest.mark.parametrize(
    "body",
    [
        "state = state_of(model)",
        "state = model.own.export(model)",
        "settings = settings.other\n        state = model.state_dict()",
        "settings.kind = settings.other\n        state = model.state_dict()",
    ],
)
def test_what_asks_elsewhere_or_after_a_change_keeps_the_context(body: str) -> None:
    text = after(body)
    assert "with state_dict_type(model, settings.kind, settings.config):" in text
    assert ASKED not in text


def test_a_model_that_is_set_to_a_kind_elsewhere_keeps_the_context() -> None:
    more = "    FSDP.set_state_dict_type(model, settings.other)\n    return state_of(model)\n"
    text = after("state = model.state_dict()", more)
    assert "with state_dict_type(model, settings.kind, settings.config):" in text
    assert ASKED not in text


def test_an_optimizers_own_load_in_the_block_is_none_of_the_models() -> None:
    body = "state = model.state_dict()\n        settings.optimizer.load_state_dict(settings.state)"
    more = "\n\ncompiled = torch.compile\n"  # of which whole loads have to know
    assert ASKED in after(body, more)
    loaded = after(f"{body}\n        model.load_state_dict(state)", more)
    assert ASKED in loaded
    assert "load_full_model(model, state)" in loaded  # which takes a state of any kind


DERIVED = """\
import torch
from packaging.version import parse
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Wrapper(FSDP):
    def __init__(self, module):
        super().__init__(module, use_orig_params=True)

    def train_step(self, batch):
        return self(batch).mean()

    if parse(torch.__version__) < parse("2.0.1"):

        @staticmethod
        def set_state_dict_type(module, kind):
            FSDP.set_state_dict_type(module, kind)


def train(net, kind):
    model = Wrapper(net)
    model.set_state_dict_type(model, kind)
    return model.state_dict()
"""


def test_a_method_for_older_releases_alone_does_not_hide_fsdp1s() -> None:
    _, files = migrate({"train.py": DERIVED})
    assert "    set_state_dict_type(model, kind)\n" in files["train.py"]


def test_a_method_of_the_classs_own_is_its_own() -> None:
    source = DERIVED.replace('if parse(torch.__version__) < parse("2.0.1")', "if True")
    _, files = migrate({"train.py": source})
    assert "    model.set_state_dict_type(model, kind)\n" in files["train.py"]


@pytest.mark.parametrize(
    "argument", ["process_group=settings.group", "sharding_strategy=ShardingStrategy.NO_SHARD"]
)
def test_a_state_that_options_do_not_describe_keeps_the_context(argument: str) -> None:
    """Of models on some of the ranks, and of replicated ones, which FSDP1 gave whole."""
    source = PROGRAM.replace("BODY", "state = model.state_dict()")
    source = source.replace("FSDP(net)", f"FSDP(net, {argument})")
    source = source.replace(
        "import torch\n", "import torch\nfrom torch.distributed.fsdp import ShardingStrategy\n", 1
    )
    _, files = migrate({"train.py": source})
    assert "with state_dict_type(model, settings.kind, settings.config):" in files["train.py"]
    assert ASKED not in files["train.py"]
