"""Parameters of classes of their own lose their class.

## What changes
Nothing by itself. Where 4-bit parameters of bitsandbytes are made (`Linear4bit`, `Params4bit`,
`load_in_4bit=True`), and where the project derives a class from `nn.Parameter`, the place is marked
for review. When the model that is wrapped is seen to be made with 4-bit layers, its migration is
held back.

## Why
`fully_shard` puts a plain `nn.Parameter` around a `DTensor` in place of every parameter. 4-bit
weights that are stored as uint8 fail or are cut apart, those stored as floats lose their
`quant_state`: the loss becomes 0 or NaN. FSDP1 trains with a floating-point `quant_storage`. Of
other classes the attributes and methods are gone; FSDP1 kept them outside of `forward` with
`use_orig_params=True`, and only such models are looked at.

## What stays for you
Keep such parameters out of the sharding with `fully_shard(..., ignored_params=...)`: every rank
then holds all of them, which 4-bit weights are small enough for more often than others. Or stay with
FSDP1.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fsdp_param.py (`_init_sharded_param`)
- https://github.com/huggingface/accelerate/issues/3983
"""

from fsdp_migrate.families.parameters import parameter_classes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP418",
    name="parameter_classes",
    handles=("4-bit parameters", "class of parameters"),
    finders=(Finder(210, in_project=parameter_classes.find_parameter_classes),),
)

EXAMPLES = [
    Example(
        title="a quantized model from elsewhere",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import BitsAndBytesConfig

QUANTIZED = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)


def shard(model):
    return FSDP(model, use_orig_params=False)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard
from transformers import BitsAndBytesConfig

# TODO(fsdp-migrate FSDP418): If fully_shard is given these 4-bit parameters, it corrupts them or loses their quant_state, which FSDP1 kept. Keep them out with fully_shard(..., ignored_params=...), which leaves all of them in every rank's memory.
QUANTIZED = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)


def shard(model):
    return fully_shard(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="4 bits are a setting",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM


def load(args):
    model = AutoModelForCausalLM.from_pretrained(args.model, load_in_4bit=args.quantize)
    return FSDP(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def load(args):
    # TODO(fsdp-migrate FSDP418): If fully_shard is given these 4-bit parameters, it corrupts them or loses their quant_state, which FSDP1 kept. Keep them out with fully_shard(..., ignored_params=...), which leaves all of them in every rank's memory.
    model = AutoModelForCausalLM.from_pretrained(args.model, load_in_4bit=args.quantize)
    return fully_shard(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a class of the project's for its parameters",
        before="""\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Scaled(nn.Parameter):
    @property
    def scale(self):
        return self.detach().abs().max()


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = Scaled(torch.zeros(dim, dim))


def build(dim):
    return FSDP(Net(dim), use_orig_params=True)
""",
        after="""\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


# TODO(fsdp-migrate FSDP418): fully_shard makes plain nn.Parameters of these: what the class defines, and isinstance, no longer work on a sharded model. Move it into the module, or keep them out with fully_shard(..., ignored_params=...), which leaves all of them in every rank's memory.
class Scaled(nn.Parameter):
    @property
    def scale(self):
        return self.detach().abs().max()


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = Scaled(torch.zeros(dim, dim))


def build(dim):
    return fully_shard(Net(dim))
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="a model with 4-bit layers is wrapped",
        source="""\
import bitsandbytes as bnb
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layer = bnb.nn.Linear4bit(dim, dim, quant_storage=torch.bfloat16)


def build(dim):
    return FSDP(Net(dim))
""",
        left=True,
    ),
    Keep(
        title="a model that is loaded in 4 bits is wrapped",
        source="""\
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def build(name):
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
    model = get_peft_model(model, LoraConfig())
    return FSDP(model, use_orig_params=True)
""",
        left=True,
    ),
    Keep(
        title="layers are replaced by 4-bit ones before the model is wrapped",
        source="""\
from bitsandbytes.nn import Linear4bit
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM


def replace(module, layer):
    for name, child in module.named_children():
        replace(child, layer)
        if isinstance(child, nn.Linear):
            setattr(module, name, layer(child.in_features, child.out_features))
    return module


def build(config):
    model = AutoModelForCausalLM.from_config(config)
    model.model = replace(model.model, Linear4bit)
    return FSDP(model)
""",
        left=True,
    ),
    Keep(
        title="4-bit models without FSDP",
        source="""\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

config = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=config)
""",
    ),
    Keep(
        title="a class of parameters without FSDP",
        source="""\
from torch import nn


class Scaled(nn.Parameter):
    pass
""",
    ),
    Keep(
        title="4-bit layers under FSDP2",
        source="""\
import bitsandbytes as bnb
from torch.distributed.fsdp import fully_shard

layer = bnb.nn.Linear4bit(8, 8)
fully_shard(model, ignored_params=set(layer.parameters()))
""",
    ),
]

KEPT_OUT = (
    "keep them out with fully_shard(..., ignored_params=...), which leaves all of them in every "
    "rank's memory"
)


def decide(site: Site, study: Study) -> Decision:
    models = parameter_classes.concerned(site, study)
    if site.construct == parameter_classes.SUBCLASS:
        return study.rewritten(
            site,
            RULE.code,
            "plain parameters now",
            models=models,
            review="fully_shard makes plain nn.Parameters of these: what the class defines, and "
            "isinstance, no longer work on a sharded model. Move it into the module, or "
            + KEPT_OUT,
        )
    wrapped = parameter_classes.wrapped_by(site, study)
    if wrapped:
        return study.left(
            site,
            RULE.code,
            "fully_shard corrupts 4-bit parameters, or loses their quant_state, where FSDP1 kept it",
            KEPT_OUT + ", or stay with FSDP1",
            models=wrapped,
            quiet=True,
        )
    return study.rewritten(
        site,
        RULE.code,
        "perhaps sharded",
        models=models,
        review="if fully_shard is given these 4-bit parameters, it corrupts them or loses their "
        "quant_state, which FSDP1 kept. " + KEPT_OUT[0].upper() + KEPT_OUT[1:],
    )
