"""A class derived from FSDP1's that stays: so does what is done to its models, and their parts."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

CLASS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Wrapped(FSDP):
    def __init__(self, module, kind):
        self.state_dict_type = kind
        super().__init__(module)

    def state_dict(self, *args):
        with FSDP.state_dict_type(self, self.state_dict_type):
            return dict(super().state_dict(*args), kind=self.state_dict_type)

    def named_parameters(self):
        return iter(())
"""
BESIDE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from wrapped import Wrapped
"""
MAIN = "from use import *\n\nother = FSDP(net)\n"
USES = {
    "its type": "def save(model: Wrapped):\n    return model.clip_grad_norm_(1.0)\n",
    "a test": "def save(model):\n    if isinstance(model, Wrapped):\n"
    "        return model.clip_grad_norm_(1.0)\n",
    "a static": "def save(model, optimizer):\n    return FSDP.optim_state_dict(model, optimizer)\n",
    "traced": "def save(net, optimizer):\n    model = Wrapped(net, None)\n"
    "    return FSDP.optim_state_dict(model, optimizer)\n",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_done_to_its_models_stays(use: str) -> None:
    source = f"{BESIDE}\n\n{use}"
    result, after = migrate({"wrapped.py": CLASS, "use.py": source, "main.py": BESIDE + MAIN})
    assert unmarked(after["use.py"]).endswith(use)
    assert any("which stays" in d.message for d in result.decisions)


def test_parts_that_its_methods_shard_stay() -> None:
    parts = CLASS.replace(
        "        super().__init__", "        shard(module)\n        super().__init__"
    )
    parts += "\n\ndef shard(module):\n    for name, child in module.named_children():\n"
    parts += "        setattr(module, name, FSDP(child))\n"
    result, after = migrate({"wrapped.py": parts})
    assert unmarked(after["wrapped.py"]) == parts
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}


def test_other_models_are_migrated() -> None:
    source = "\n\nmodel = FSDP(net)\nmodel.clip_grad_norm_(1.0)\n"
    _, after = migrate({"wrapped.py": CLASS, "main.py": BESIDE + source})
    assert "fully_shard(net)" in after["main.py"]
    assert "class Wrapped(FSDP)" in after["wrapped.py"]


# Read, it is the setting; called, it is FSDP1's.
def test_a_setting_under_a_methods_name_is_no_method() -> None:
    use = "def kind(model: Wrapped):\n    return model.state_dict_type == 1\n"
    files = {"wrapped.py": CLASS, "use.py": f"{BESIDE}\n\n{use}", "main.py": BESIDE + MAIN}
    result, _ = migrate(files)
    reasons = [d.message for d in result.decisions if d.site.module.display == "use.py"]
    assert not any("passed on as a value" in reason for reason in reasons)


def test_a_method_that_is_handed_on_is_one() -> None:
    use = "def save(net):\n    model = FSDP(net)\n    return enter(model.state_dict_type)\n"
    result, after = migrate({"use.py": BESIDE.replace("from wrapped import Wrapped\n", use)})
    assert any("passed on as a value" in d.message for d in result.decisions)
    assert "fully_shard" not in after["use.py"]
