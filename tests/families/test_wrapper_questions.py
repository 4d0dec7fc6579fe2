"""``hasattr(model, "_fsdp_wrapped_module")``: FSDP2's class is asked for, or nothing is done."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net):
    return FSDP(net)


def unwrap(module):
"""
ASKED = {
    "a branch that returns": (
        '    if hasattr(module, "_fsdp_wrapped_module"):\n'
        "        return module._fsdp_wrapped_module\n    raise ValueError(module)\n",
        "    if isinstance(module, FSDPModule):\n        return module\n",
    ),
    "an assignment": (
        '    if hasattr(module, "module"):\n        module = module.module\n'
        '    elif hasattr(module, "_fsdp_wrapped_module"):\n'
        "        module = module._fsdp_wrapped_module\n    return module\n",
        "    elif isinstance(module, FSDPModule):\n        module = module\n",
    ),
    "something else": (
        '    if module.on and hasattr(module, "_fsdp_wrapped_module"):\n'
        "        print(module._fsdp_wrapped_module.config)\n",
        "    if module.on and isinstance(module, FSDPModule):\n        print(module.config)\n",
    ),
    "an expression": (
        "    return module._fsdp_wrapped_module.config"
        ' if hasattr(module, "_fsdp_wrapped_module") else None\n',
        "    return module.config if isinstance(module, FSDPModule) else None\n",
    ),
}
KEPT = {
    "a loop": '    while hasattr(module, "_fsdp_wrapped_module"):\n'
    "        module = module._fsdp_wrapped_module\n    return module\n",
    "recursion": '    if hasattr(module, "_fsdp_wrapped_module"):\n'
    "        return unwrap(module._fsdp_wrapped_module)\n    return module\n",
}
CALLED = "\n\ndef main(net):\n    return unwrap(wrap(net))\n"


@pytest.mark.parametrize("more", ["", CALLED], ids=["uncalled", "called"])
@pytest.mark.parametrize("asked", ASKED)
def test_fsdp2s_class_is_asked_for(asked: str, more: str) -> None:
    body, new = ASKED[asked]
    result, after = migrate({"example.py": HEAD + body + more})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert new in after["example.py"]
    assert "_fsdp_wrapped_module" not in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize("more", ["", CALLED], ids=["uncalled", "called"])
@pytest.mark.parametrize("kept", KEPT)
def test_what_takes_wrappers_off_again_and_again_has_nothing_to_do(kept: str, more: str) -> None:
    result, after = migrate({"example.py": HEAD + KEPT[kept] + more})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert not result.problems
    assert "return fully_shard(net)" in after["example.py"]
    assert KEPT[kept] in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize(
    "body",
    [
        '    if hasattr(module, "_fsdp_wrapped_module"):\n        print(module)\n',
        '    fast = torch.compile(module)\n    if hasattr(fast, "_fsdp_wrapped_module"):\n'
        "        return fast._fsdp_wrapped_module\n    return fast\n",
    ],
)
def test_what_is_not_told_is_left(body: str) -> None:
    source = f"import torch\n{HEAD}{body}{CALLED}"
    result, after = migrate({"example.py": source})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert "hasattr" in unmarked(after["example.py"])
