"""``wrap`` is written out where the context around it says what it is given, and only there."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import enable_wrap, wrap


"""
PLAIN = """\
def build(net, cfg):
    with enable_wrap(wrapper_cls=FSDP, device_mesh=cfg.mesh):
        net.head = wrap(net.head)
        return wrap(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
"""
BODY = "        net.head = wrap"
KNOWN = {
    "as it stands": PLAIN,
    "an attribute that is set behind it": PLAIN.replace(
        "        return wrap(net, sharding", "        net = wrap(net, sharding"
    )
    + "    cfg.mesh = []\n    return net\n",
    "beside another context": PLAIN.replace("with enable", 'with torch.device("cpu"), enable'),
    "in another context": PLAIN.replace(
        "    with enable", '    with torch.device("cpu"):\n      with enable'
    ),
    "a dictionary": PLAIN.replace(
        "    with enable_wrap(wrapper_cls=FSDP, device_mesh=cfg.mesh)",
        "    params = dict(wrapper_cls=FSDP, device_mesh=cfg.mesh)\n    with enable_wrap(**params)",
    ),
    "a dictionary that is added to": PLAIN.replace(
        "    with enable_wrap(wrapper_cls=FSDP, device_mesh=cfg.mesh)",
        "    params = {}\n    params['device_mesh'] = cfg.mesh\n"
        "    with enable_wrap(wrapper_cls=FSDP, **params)",
    ),
    "a dictionary written there": PLAIN.replace(
        "device_mesh=cfg.mesh", '**{"device_mesh": cfg.mesh, "use_orig_params": True}'
    ),
    "two contexts with one dictionary": """\
def build(net, cfg):
    params = dict(wrapper_cls=FSDP, device_mesh=cfg.mesh)
    with enable_wrap(**params):
        net.head = wrap(net.head)
    with enable_wrap(**params):
        return wrap(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
""",
    "a model of a library": "from transformers import AutoModel\n\n\n"
    + PLAIN.replace(BODY, f"        net.lm = AutoModel.from_pretrained(cfg.lm)\n{BODY}"),
    "under a condition": PLAIN.replace(BODY, f"        if cfg.head:\n    {BODY}"),
}
OTHERWISE = {
    "an attribute that is set in between": PLAIN.replace(BODY, f"        cfg.mesh = []\n{BODY}"),
    "a name that is bound in between": PLAIN.replace(BODY, f"        cfg = net.cfg\n{BODY}"),
    "what is to be made once": PLAIN.replace("cfg.mesh", "cfg.mesh()"),
    "a group for all": PLAIN.replace(
        "device_mesh=cfg.mesh", "process_group=torch.distributed.new_group(cfg.ranks)"
    ),
    "a variable of a comprehension": PLAIN.replace(
        "net.head = wrap(net.head)", "net.heads = nn.Sequential(*[wrap(cfg) for cfg in net.heads])"
    ),
    "what is asked for later": PLAIN.replace(
        "net.head = wrap(net.head)", "heads = (wrap(head) for head in net.heads)"
    ),
    "a function in it": PLAIN.replace(
        "        net.head = wrap(net.head)\n",
        "        def part(module):\n            return wrap(module)\n\n"
        "        net.head = part(net.head)\n",
    ),
    "a stack": """\
def build(net, cfg, stack):
    stack.enter_context(enable_wrap(wrapper_cls=FSDP, device_mesh=cfg.mesh))
    return wrap(net)
""",
    "a function that is called in it": PLAIN.replace("wrap(net.head)", "part(net.head)")
    + "\n\ndef part(module):\n    return wrap(module)\n",
    "code that is not given": "from nets import Head\n\n\n"
    + PLAIN.replace(BODY, f"        net.head = Head()\n{BODY}"),
    "arguments from elsewhere": PLAIN.replace("cfg.mesh)", "cfg.mesh, **cfg.more)"),
    "arguments from elsewhere for one of them": PLAIN.replace(
        "wrap(net.head)", "wrap(net.head, **cfg.more)"
    ),
    "a dictionary that somebody else reads": KNOWN["a dictionary"].replace(
        "    with", "    print(params)\n    with"
    ),
    "a dictionary that changes under a condition": KNOWN["a dictionary"].replace(
        "    with", "    if cfg.all:\n        params['device_mesh'] = []\n    with"
    ),
}


@pytest.mark.parametrize("way", KNOWN)
def test_a_context_that_is_known_goes(way: str) -> None:
    result, after = migrate({"train.py": HEAD + KNOWN[way]})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    assert "enable_wrap" not in text
    assert "params" not in text
    assert text.count("fully_shard(net") == 2
    assert text.count("mesh=cfg.mesh") == 2
    assert text.count("reshard_after_forward=False") == 1
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_is_not_known_keeps_its_context(way: str) -> None:
    _, after = migrate({"train.py": HEAD + OTHERWISE[way]})
    assert "fully_shard(" not in after["train.py"]
    assert "enable_wrap(" in after["train.py"]


def test_own_arguments_come_first() -> None:
    body = PLAIN.replace("device_mesh=cfg.mesh", "sync_module_states=True").replace(
        "wrap(net.head)", "wrap(net.head, sync_module_states=False)"
    )
    _, after = migrate({"train.py": HEAD + body})
    assert "net.head = fully_shard(net.head)\n" in after["train.py"].replace(
        "    fully_shard(net.head)\n", "    net.head = fully_shard(net.head)\n"
    )
    assert after["train.py"].count("broadcast_from_rank0=True") == 1


def test_what_only_the_running_program_knows_is_given_to_each() -> None:
    """The run-time form of the constructor that each ``wrap`` is."""
    body = PLAIN.replace("device_mesh=cfg.mesh", "mixed_precision=cfg.precision")
    _, after = migrate({"train.py": HEAD + body})
    text = after["train.py"]
    assert "enable_wrap" not in text
    assert "shard(net.head, mixed_precision=cfg.precision, is_root=False)" in text
    assert text.count("mixed_precision=cfg.precision") == 2


def test_one_that_is_left_keeps_the_others() -> None:
    """The context goes with all that it is for, or stays."""
    body = PLAIN.replace("wrap(net.head)", "wrap(nn.ModuleList(net.heads))")
    result, after = migrate({"train.py": HEAD + body})
    assert {outcome.value for _, outcome in outcomes(result)} == {"left"}
    assert "with enable_wrap(wrapper_cls=FSDP, device_mesh=cfg.mesh):" in after["train.py"]
    assert after["train.py"].count("wrap(net") == 1


def test_comments_in_the_body_stay() -> None:
    body = PLAIN.replace(BODY, f"        # The head first.\n{BODY}")
    _, after = migrate({"train.py": HEAD + body})
    assert "\n    # The head first.\n" in after["train.py"]


def test_a_second_run_finds_nothing() -> None:
    _, after = migrate({"train.py": HEAD + PLAIN})
    assert not migrate(after)[0].changes
