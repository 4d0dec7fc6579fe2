"""Whose parameters are 4-bit ones or of a class of their own, and what that means."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import bitsandbytes as bnb
import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from peft import get_peft_model
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

"""

# What is written after HEAD, by name.
HELD = {
    "a layer among others": "model = FSDP(nn.Sequential(nn.ReLU(), Linear4bit(3, 3)))",
    "a subclass of a layer": """\
class Quantized(bnb.nn.Linear4bit):
    pass


def build():
    return FSDP(nn.Sequential(nn.Linear(3, 3), Quantized(3, 3)))
""",
    "a subclass that one of two calls makes without a condition": """\
class Quantized(bnb.nn.Linear4bit):
    pass


def build(small):
    head = Quantized(3, 3) if small else nn.Linear(3, 3)
    return FSDP(nn.Sequential(Quantized(3, 3), head))
""",
    "a subclass for every layer of a class": """\
class Quantized(bnb.nn.Linear4bit):
    pass


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        for name, layer in layers.items():
            if isinstance(layer, nn.Linear):
                layer = Quantized(3, 3)
            self.add_module(name, layer)


def build(layers):
    return FSDP(Net(layers))
""",
    "a layer set on the model": """\
def build(config):
    model = AutoModelForCausalLM.from_config(config)
    model.lm_head = Linear4bit(3, 3)
    return FSDP(model)
""",
    "the argument of from_pretrained": """\
model = AutoModelForCausalLM.from_pretrained("x", load_in_4bit=True)
model = FSDP(get_peft_model(model, None))
""",
    "a configuration that one of two models is loaded with": """\
def build(name, small):
    config = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
    if small:
        AutoModelForCausalLM.from_pretrained("small", quantization_config=config)
    return FSDP(model)
""",
    "a configuration that a function gives": """\
def quantization():
    return BitsAndBytesConfig(load_in_4bit=True)


def build(name):
    return FSDP(AutoModelForCausalLM.from_pretrained(name, quantization_config=quantization()))
""",
    "keyword arguments": """\
def build(name):
    given = {"load_in_4bit": True}
    return FSDP(AutoModelForCausalLM.from_pretrained(name, **given))
""",
}
SUBCLASS = """\
class Quantized(bnb.nn.Linear4bit):
    pass


class Net(nn.Module):
    def __init__(self, four=False):
        super().__init__()
        self.layer = linear(8, four)


"""
BUILD = """

def build():
    return FSDP(Net())
"""
REVIEWED = {
    "8 bits": """\
config = BitsAndBytesConfig(load_in_8bit=True, load_in_4bit=False)


def build(net):
    return FSDP(net)
""",
    "a subclass under a condition": SUBCLASS
    + """\
def linear(n, four):
    if four:
        return Quantized(n, n)
    else:
        return nn.Linear(n, n)
"""
    + BUILD,
    "a subclass in an expression": SUBCLASS
    + """\
def linear(n, four):
    return Quantized(n, n) if four else nn.Linear(n, n)
"""
    + BUILD,
    "a subclass behind a return": SUBCLASS
    + """\
def linear(n, four):
    if not four:
        return nn.Linear(n, n)
    return Quantized(n, n)
"""
    + BUILD,
    "a subclass in a variable": SUBCLASS
    + """\
def linear(n, four):
    kind = Quantized if four else nn.Linear
    return kind(n, n)
"""
    + BUILD,
    "a subclass of a subclass, and questions for it": SUBCLASS
    + """\
class Deeper(Quantized):
    def copy(self) -> "Deeper":
        return Deeper(3, 3)


def linear(n, four) -> Quantized | nn.Linear:
    layer = nn.Linear(n, n)
    if four:
        layer = Deeper(n, n)
    return layer


def count(model: nn.Module) -> int:
    return len([m for m in model.modules() if isinstance(m, Quantized)])
"""
    + BUILD,
    "one of two classes": """\
def build(four):
    kind = Linear4bit if four else nn.Linear
    return FSDP(nn.Sequential(kind(3, 3)))
""",
    "behind a return": SUBCLASS.replace("class Quantized(bnb.nn.Linear4bit):\n    pass\n\n\n", "")
    + """\
def linear(n, four):
    if not four:
        return nn.Linear(n, n)
    return Linear4bit(n, n)
"""
    + BUILD,
    "under a condition": """\
def build(args):
    model = AutoModelForCausalLM.from_config(args.config)
    if args.quantize:
        model.lm_head = Linear4bit(3, 3)
    return FSDP(model)
""",
    "a configuration that is kept, and taken under a condition": """\
def build(name, low):
    config = BitsAndBytesConfig(load_in_4bit=True)
    if not low:
        model = AutoModelForCausalLM.from_pretrained(name)
    else:
        model = AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
    return FSDP(model)
""",
    "a configuration that a function gives under a condition": """\
def quantization():
    return BitsAndBytesConfig(load_in_4bit=True)


def build(name, low):
    config = quantization() if low else None
    return FSDP(AutoModelForCausalLM.from_pretrained(name, quantization_config=config))
""",
    "keyword arguments that are kept": """\
def build(name, low):
    four = {"load_in_4bit": True}
    if low:
        return FSDP(AutoModelForCausalLM.from_pretrained(name, **four))
    return FSDP(AutoModelForCausalLM.from_pretrained(name))
""",
    "kept out of the sharding": """\
def build(net):
    layer = Linear4bit(3, 3)
    return FSDP(nn.Sequential(net, layer), ignored_modules=[layer])
""",
    "a parameter of a model from elsewhere": """\
def pack(module):
    module.weight = Params4bit(module.weight.data, requires_grad=False)


def build(net):
    return FSDP(net)
""",
    "a class handed to a library": """\
from quantizing import replace_linear


def build(net):
    replace_linear(net, layer=Linear4bit)
    return FSDP(net)
""",
    "parameters of the project's, kept by FSDP1": """\
class Scaled(nn.Parameter):
    pass


def build(net):
    return FSDP(net, use_orig_params=True)
""",
}
NOT_CONCERNED = {
    "who asks for the class makes none": """\
def find(model, bits):
    kind = bnb.nn.Linear4bit if bits == 4 else nn.Linear
    return [n for n, m in model.named_modules() if isinstance(m, (kind, Params4bit))]


def build(net):
    return FSDP(net)
""",
    "8 bits that are off": """\
config = BitsAndBytesConfig(load_in_8bit=False, load_in_4bit=False)


def build(net):
    return FSDP(net)
""",
    "parameters of the project's, lost in FSDP1's flat ones": """\
class Scaled(nn.Parameter):
    pass


def build(net):
    return FSDP(net)
""",
    "parameters of another model": """\
class Scaled(nn.Parameter):
    pass


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = Scaled(torch.zeros(3))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)


def build():
    return Teacher(), FSDP(Student(), use_orig_params=True)
""",
}


def ends(source: str) -> tuple[list[Outcome], str]:
    """How the sites of FSDP418 end, and the file after the run."""
    result, after = migrate({"train.py": HEAD + textwrap.dedent(source)})
    assert not result.problems
    assert not migrate(after)[0].changes
    return [d.outcome for d in result.decisions if d.code == "FSDP418"], after["train.py"]


@pytest.mark.parametrize("source", HELD.values(), ids=HELD)
def test_a_model_with_4_bit_layers_is_held_back(source: str) -> None:
    found, after = ends(source)
    assert found == [Outcome.LEFT]
    assert "fully_shard(" not in after.replace("fully_shard(..., ", "")


@pytest.mark.parametrize("source", REVIEWED.values(), ids=REVIEWED)
def test_what_may_be_in_the_model_is_marked(source: str) -> None:
    found, after = ends(source)
    assert found == [Outcome.REVIEW]
    assert "FSDP(" not in after


@pytest.mark.parametrize("held", [False, True])
def test_the_calls_of_a_subclass_are_looked_for_in_all_files(held: bool) -> None:
    chosen = "Kind(n, n)" if held else "Kind(n, n) if four else nn.Linear(n, n)"
    result, after = migrate(
        {
            "kinds.py": "import bitsandbytes as bnb\n\n\nclass Quantized(bnb.nn.Linear4bit):\n"
            "    pass\n",
            "net.py": "from kinds import Quantized as Kind\nfrom torch import nn\n\n\n"
            f"def linear(n, four=False):\n    return {chosen}\n",
            "train.py": "from net import linear\nfrom torch.distributed.fsdp import "
            "FullyShardedDataParallel as FSDP\n\nmodel = FSDP(linear(8))\n",
        }
    )
    assert not result.problems
    found = [d.outcome for d in result.decisions if d.code == "FSDP418"]
    assert found == [Outcome.LEFT if held else Outcome.REVIEW]
    assert ("FSDP(" in after["train.py"]) == held


@pytest.mark.parametrize("source", NOT_CONCERNED.values(), ids=NOT_CONCERNED)
def test_other_models_are_not_concerned(source: str) -> None:
    found, after = ends(source)
    assert found == []
    assert "FSDP(" not in after


def test_a_file_without_fsdp_is_read_for_them() -> None:
    files = {
        "model.py": "from bitsandbytes.nn import Linear4bit\n\n\ndef head():\n"
        "    return Linear4bit(3, 3)\n",
        "train.py": "from model import head\nfrom torch.distributed.fsdp import "
        "FullyShardedDataParallel as FSDP\n\n\ndef build(net):\n    net.head = head()\n"
        "    return FSDP(net)\n",
    }
    result, _ = migrate(files)
    assert {d.site.module.display for d in result.decisions if d.code == "FSDP418"} == {"model.py"}


SCRIPT = """\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
{imports}

def main():
    config = BitsAndBytesConfig(load_in_4bit=True)
    AutoModelForCausalLM.from_pretrained("name", quantization_config=config).train()


if __name__ == "__main__":
    main()
"""
SHARDING = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model, use_orig_params=True)
"""
IMPORTED = {"": False, "from shard import shard\n": True, "import other\n": True}


@pytest.mark.parametrize("imports", IMPORTED)
def test_a_script_that_imports_no_sharding_is_not_marked(imports: str) -> None:
    files = {
        "finetune.py": SCRIPT.format(imports=imports),
        "shard.py": SHARDING,
        "other.py": "import shard\n",
    }
    _, after = migrate(files)

    assert ("FSDP418" in after["finetune.py"]) == IMPORTED[imports]


FAMILY = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base(nn.Parameter):
    pass


class Rows(Base):
    pass


class Columns(Rows):
    pass


class Other(nn.Parameter):
    pass


class Counted(Base, Other):
    pass


class Net(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.weight = MADE(made)


def build(made):
    return FSDP(Net(made), use_orig_params=True)
"""


@pytest.mark.parametrize("made", ["Base", "Rows", "Columns", "made"])
def test_a_family_of_classes_of_parameters_has_one_marker(made: str) -> None:
    result, after = migrate({"a.py": FAMILY.replace("MADE", made)})
    marked = [d.site.node.name for d in result.decisions if d.code == "FSDP418"]
    assert marked == ["Base", "Other"]
    assert after["a.py"].count("FSDP418") == 2


def test_a_family_in_several_files_has_one_marker() -> None:
    base, derived = FAMILY.split("\n\n\nclass Rows")
    files = {
        "base.py": base,
        "a.py": (
            "from torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as "
            f"FSDP\n\nfrom base import Base\n\n\nclass Rows{derived.replace('MADE', 'Rows')}"
        ),
    }
    result, _ = migrate(files)
    marked = [d.site.node.name for d in result.decisions if d.code == "FSDP418"]
    assert sorted(marked) == ["Base", "Other"]
