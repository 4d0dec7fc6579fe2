"""What a package offers to others for FSDP1 models of theirs."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.selection import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

ADAPTER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter:
    def __init__(self, module: FSDP, optimizer):
        self.module, self.optimizer = module, optimizer

    def state_dict(self):
        return FSDP.optim_state_dict(self.module, self.optimizer)

    def load_state_dict(self, state):
        part = FSDP.optim_state_dict_to_load(self.module, self.optimizer, state)
        self.optimizer.load_state_dict(part)
"""
MODEL = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net, use_orig_params=True)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
"""
TEST = """\
from benchmarks import build
from kit.tricks import Adapter


def test_it(net):
    assert Adapter(*build(net)).state_dict()
"""
LIBRARY = {
    "kit/__init__.py": '__all__ = ["Adapter"]\nfrom kit.tricks import Adapter\n',
    "kit/tricks.py": ADAPTER,
    "tests/test_tricks.py": TEST,
    "benchmarks.py": MODEL,
}
USER = "from kit.tricks import Adapter\nfrom benchmarks import build\n\nAdapter(*build(net))\n"


def said(files: dict[str, str]) -> list[str]:
    result, after = migrate(files)
    assert "fully_shard(net)" in after["benchmarks.py"]
    taken = [d for d in result.decisions if d.site.module.display == "kit/tricks.py"]
    return [d.help for d in taken if d.outcome is Outcome.REVIEW and "users" in d.help]


def test_a_class_for_users_of_a_package_says_what_it_takes_once() -> None:
    [why] = said(LIBRARY)
    assert "hand their models to Adapter" in why


def test_a_function_does() -> None:
    function = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def whole(model):\n    with FSDP.summon_full_params(model):\n"
        "        return [p.sum() for p in model.parameters()]\n"
    )
    test = "from kit.tricks import whole\n"
    [why] = said(LIBRARY | {"kit/tricks.py": function, "tests/test_tricks.py": test})
    assert "hand their models to whole" in why


def test_an_example_is_what_users_may_write() -> None:
    [why] = said(LIBRARY | {"examples/train.py": USER})
    assert "hand their models to Adapter" in why


NOT_OFFERED = {
    "used here": {"train.py": USER},
    "called by its name in a string": {"train.py": 'chosen = {"adapter": "Adapter"}\n'},
    "private": {"kit/tricks.py": ADAPTER.replace("Adapter", "_Adapter")},
    "registered": {"kit/tricks.py": ADAPTER.replace("class", "@register\nclass")},
}


@pytest.mark.parametrize("files", NOT_OFFERED.values(), ids=NOT_OFFERED)
def test_what_the_program_itself_uses_does_not(files: dict[str, str]) -> None:
    assert said(LIBRARY | files) == []


TRAINER = """\
from transformers import AutoModel
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Adapter:
    def __init__(self, net, other):
        self.other = other
        self.model = AutoModel.from_pretrained("one")
        self.model = wrap(self.model)

    def save(self):
        with FSDP.summon_full_params(GIVEN):
            return [p.sum() for p in GIVEN.parameters()]


def wrap(net):
    return FSDP(net)
"""


@pytest.mark.parametrize("made", ["wrap(self.model)", "FSDP(self.model)"])
def test_nobody_hands_models_to_what_makes_its_own(made: str) -> None:
    trainer = TRAINER.replace("GIVEN", "self.model").replace("= wrap(self.model)", f"= {made}")
    test = "from kit.tricks import Adapter\n\n\ndef test_it(mock):\n"
    test += "    adapter = Adapter(None, None)\n    adapter.model = mock\n    adapter.save()\n"
    files = {"kit/tricks.py": trainer, "tests/test_tricks.py": test}
    assert said(LIBRARY | files) == []


def test_what_makes_one_model_is_handed_others() -> None:
    trainer = TRAINER.replace("GIVEN", "self.other")
    test = "from kit.tricks import Adapter\nfrom benchmarks import build\n"
    test += "\nAdapter(None, build(None)[0]).save()\n"
    [why] = said(LIBRARY | {"kit/tricks.py": trainer, "tests/test_tricks.py": test})
    assert "hand their models to Adapter" in why


def test_a_script_has_no_users() -> None:
    files = {"tricks.py": ADAPTER, "benchmarks.py": MODEL}
    result, _ = migrate(files)
    assert all("users" not in d.help for d in result.decisions)


def test_a_program_that_nobody_can_install_has_no_users() -> None:
    result, after = migrate(LIBRARY, Options(published=False))
    assert "fully_shard(net)" in after["benchmarks.py"]
    assert not any("users" in d.help for d in result.decisions)


WRAPPING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net, PARAMETERS):
    return FSDP(net, ARGUMENTS)
"""


def written(parameters: str, arguments: str, call: str, *, name: str = "wrap") -> str:
    wrapping = WRAPPING.replace("PARAMETERS", parameters).replace("ARGUMENTS", arguments)
    user = f"import torch\nfrom kit.wrapping import {name}\n\nmodel = {name}(torch.nn.Linear(4, 4)"
    files = {
        "kit/__init__.py": "",
        "kit/wrapping.py": wrapping.replace("def wrap", f"def {name}"),
        "kit/main.py": f"{user}{call})\n",
    }
    _, after = migrate(files)
    assert "fully_shard(" in after["kit/wrapping.py"]
    return " ".join(after["kit/wrapping.py"].split()).replace("# ", "")


@pytest.mark.parametrize(
    ("parameters", "arguments", "names"),
    [
        ("policy=None", "auto_wrap_policy=policy", "policy"),
        ("*, precision=None", "mixed_precision=precision", "precision"),
        (
            "policy=None, precision=None",
            "auto_wrap_policy=policy, mixed_precision=precision",
            "policy and precision",
        ),
    ],
)
def test_what_users_alone_may_give_a_wrapper_is_said(
    parameters: str, arguments: str, names: str
) -> None:
    after = written(parameters, arguments, "")
    assert f"Users of this package may give {names} to wrap()" in after


@pytest.mark.parametrize(
    ("parameters", "arguments", "call", "name"),
    [
        ("fused=True", "use_orig_params=fused", "", "wrap"),  # means nothing to FSDP2
        ("policy=None", "auto_wrap_policy=policy", "", "_wrap"),  # nobody's but the package's
        ("precision=None", "mixed_precision=precision", ", precision=None", "wrap"),
        ("mesh=None", "use_orig_params=mesh is None", "", "wrap"),
    ],
)
def test_nothing_is_said_of_what_nobody_gives(
    parameters: str, arguments: str, call: str, name: str
) -> None:
    assert "Users of this package" not in written(parameters, arguments, call, name=name)
