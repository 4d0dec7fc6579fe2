"""A function that shards whatever it is given, and policies with the names of torch 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.helpers.migrating import rewritten

FILE = """\
import copy
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch import nn

precision = MixedPrecision(param_dtype=torch.bfloat16)
policy = ModuleWrapPolicy({nn.Linear})


"""
SHARDED = "FSDP(MODEL, auto_wrap_policy=policy, mixed_precision=precision)"
FUNCTION = "def shard_model(model):\n    return SHARDED\n"
METHOD = "class Trainer:\n    def __init__(self, net):\n        self.net = SHARDED\n"
HELD = (
    "class Trainer:\n    def __init__(self, model):\n        self.model = model\n\n"
    "    def setup(self):\n        self.model = SHARDED\n"
)
HOLDER = """\
class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


"""
UNRELATED = "from torch import nn\n\nnorm = nn.BatchNorm2d(8)\n"


def _after(text: str, other: str, folder: Path) -> str:
    (folder / "shards.py").write_text(text)
    (folder / "elsewhere.py").write_text(other)
    result = session.run([folder]).result
    assert not result.problems
    changed = {path.name: data.decode() for path, data in result.changes.items()}
    return changed["shards.py"]


@pytest.mark.parametrize(
    ("function", "model"),
    [
        (FUNCTION, "model"),
        (METHOD, "net"),
        (HELD, "self.model"),
        (FUNCTION, "nn.Sequential(model, nn.Linear(8, 8))"),
        (FUNCTION, "nn.ModuleList([model, nn.Linear(8, 8)])"),
        (HOLDER + FUNCTION, "Holder(model)"),
        (FUNCTION, "copy.deepcopy(model)"),
    ],
)
def test_norms_in_any_file_count_for_models_of_unseen_callers(
    function: str, model: str, tmp_path: Path
) -> None:
    text = FILE + function.replace("SHARDED", SHARDED.replace("MODEL", model))
    assert "_BatchNorm" in _after(text, UNRELATED, tmp_path)


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (FUNCTION, "from torch import nn\n\nnorm = nn.LayerNorm(8)\n"),
        (FUNCTION + "\n\nmodel = shard_model(nn.Sequential(nn.Linear(8, 8)))\n", UNRELATED),
        (METHOD + "\n\ntrainer = Trainer(nn.Sequential(nn.Linear(8, 8)))\n", UNRELATED),
        ("model = SHARDED\n".replace("MODEL", "nn.Linear(8, 8)"), UNRELATED),
    ],
)
def test_no_norms_where_there_are_none_or_the_model_is_in_sight(
    function: str, other: str, tmp_path: Path
) -> None:
    model = "net" if "net" in function else "model" if "def" in function else "nn.Linear(8, 8)"
    text = FILE + function.replace("SHARDED", SHARDED.replace("MODEL", model))
    assert "_BatchNorm" not in _after(text, other, tmp_path)


@pytest.mark.parametrize(
    ("document", "has_norms"),
    [
        ("model = torchvision.models.resnet50()", True),
        ("Every nn.BatchNorm2d stays in full precision.", True),
        ("It trains language models.", False),
    ],
)
def test_documents_show_what_the_users_of_a_package_give(
    document: str, tmp_path: Path, *, has_norms: bool
) -> None:
    """Though its tests give it a model of linear layers."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "setup.py").write_text("from setuptools import setup\n\nsetup(name='package')\n")
    (tmp_path / "quick_start.md").write_text(f"# Start\n\n{document}\n")
    (tmp_path / "test_it.py").write_text(
        "from torch import nn\n\nfrom package.shards import shard_model\n\n"
        "model = shard_model(nn.Sequential(nn.Linear(8, 8)))\n"
    )
    text = FILE + FUNCTION.replace("SHARDED", SHARDED.replace("MODEL", "model"))
    (package / "shards.py").write_text(text)
    result = session.run([tmp_path]).result
    assert not result.problems
    changed = {path.name: data.decode() for path, data in result.changes.items()}
    assert ("_BatchNorm" in changed["shards.py"]) is has_norms


@pytest.mark.parametrize(
    ("made", "has_norms"),
    [
        ("LoraModel(AutoModelForCausalLM.from_pretrained('a'), None, 'b')", False),
        ("PeftModelForCausalLM(AutoModelForCausalLM.from_pretrained('a'), None)", False),
        ("AdaLoraModel(AutoModelForCausalLM.from_pretrained('a'), None, 'b')", False),
        ("LoraModel(AutoModel.from_pretrained('a'), None, 'b')", True),
        ("AutoPeftModel.from_pretrained('a')", True),
    ],
)
def test_adapters_of_peft_add_no_norms(made: str, *, has_norms: bool) -> None:
    text = FILE.replace("from torch import nn", "from torch import nn\nfrom transformers import *")
    text = text.replace("import *", "import AutoModel, AutoModelForCausalLM")
    names = "AdaLoraModel, AutoPeftModel, LoraModel, PeftModelForCausalLM"
    text = f"from peft import {names}\n" + text + f"model = {SHARDED.replace('MODEL', made)}\n"
    assert ("_BatchNorm" in rewritten(text)) is has_norms


POLICY = """\
import functools
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrapper(PARAMETERS):
    return True if recurse else isinstance(module, nn.Linear)


model = FSDP(nn.Sequential(nn.Linear(8, 8)), auto_wrap_policy=GIVEN)
"""


@pytest.mark.parametrize(
    ("parameters", "given"),
    [
        ("module, recurse, unwrapped_params", "wrapper"),
        ("module, recurse, unwrapped_params, least=8", "functools.partial(wrapper, least=9)"),
        ("module, recurse, unwrapped_params: int = 0", "wrapper"),
        ("module, recurse, *, unwrapped_params", "wrapper"),
    ],
)
def test_policies_with_names_of_torch_1_are_marked(parameters: str, given: str) -> None:
    text = POLICY.replace("PARAMETERS", parameters).replace("GIVEN", given)
    assert "has no parameter nonwrapped_numel" in " ".join(rewritten(text).split())


@pytest.mark.parametrize(
    "parameters",
    [
        "module, recurse, nonwrapped_numel",
        "module, recurse, **kwargs",
        "module, *, recurse, nonwrapped_numel",
        "module, recurse, nonwrapped_numel, unwrapped_params=0",
    ],
)
def test_others_are_not(parameters: str) -> None:
    text = POLICY.replace("PARAMETERS", parameters).replace("GIVEN", "wrapper")
    assert "has no parameter" not in rewritten(text)
