"""Put FSDP2's hooks around methods that compute, other than `forward`.

## What changes
`register_fsdp_forward_method(model, "encode")` follows the sharding of a model on which `encode` is
called from outside, when `encode` computes with layers or parameters, or calls `self.forward`.

## Why
FSDP2 gathers parameters when a module is called. Another method meets shards and fails (`got mixed
torch.Tensor and DTensor`); after an evaluation it runs, and trains nothing. FSDP1 gathered nothing
for such methods either, so they only work there when they compute with wrapped children, or without
sharding. Registered they work in any case, also before the first call of the model.

## What stays for you
Methods that `forward` calls as well (at the end of the inner call a unit frees what the outer one
still needs; before torch 2.13 also where one registered method hands another what it has computed,
whose gradients would be lost), generators, and models wrapped where no statement can follow. Methods of single layers
(`model.layers[0].attend(x)`), and of classes outside the given paths, are not looked into; those of
`transformers` call `self(...)`, which needs nothing.

## Since torch
2.6

## References
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- torch/distributed/fsdp/_fully_shard/_fully_shard.py
"""

from collections.abc import Iterator

from fsdp_migrate.families.wrapping import methods
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule


def _entry_methods(study: Study) -> Iterator[Site]:
    return (entry.site for entry in methods.entries(study))


RULE = Rule(
    code="FSDP411",
    name="methods",
    handles=("entry method",),
    finders=(Finder(240, in_project=_entry_methods),),
)

EXAMPLES = [
    Example(
        title="a model trained through its loss",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def loss(self, batch):
        return (self.forward(batch["x"]) - batch["y"]).square().mean()


class Trainer:
    def __init__(self):
        self.model = FSDP(Net())

    def step(self, batch):
        self.model.loss(batch).backward()
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def loss(self, batch):
        return (self.forward(batch["x"]) - batch["y"]).square().mean()


class Trainer:
    def __init__(self):
        model = Net()
        self.model = fully_shard(model)
        register_fsdp_forward_method(model, "loss")

    def step(self, batch):
        self.model.loss(batch).backward()
""",
    ),
    Example(
        title="in another file, on blocks that are units",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from nets import Block, Encoder


def build():
    model = FSDP(Encoder(), auto_wrap_policy=ModuleWrapPolicy({Block}))
    return model


def evaluate(batches):
    model = build()
    return [model.module.encode(x) for x in batches]
""",
        after="""\
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from nets import Block, Encoder


def build():
    model = Encoder()
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    register_fsdp_forward_method(model, "encode")
    return model


def evaluate(batches):
    model = build()
    return [model.encode(x) for x in batches]
""",
        files={
            "nets.py": (
                """\
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.blocks(x))

    def encode(self, x):
        return self.blocks(x)
""",
                """\
import torch.nn as nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.blocks(x))

    def encode(self, x):
        return self.blocks(x)
""",
            ),
        },
    ),
    Example(
        title="generation, on a model sharded by settings",
        before="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        return self.head(self.embed(tokens))

    @torch.no_grad()
    def generate(self, tokens, steps):
        for _ in range(steps):
            token = self.forward(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, token), dim=1)
        return tokens


def sample(tokens, **settings):
    model = wrap(Decoder(), **settings)
    return model.generate(tokens, 10)


def wrap(model, **settings):
    return FSDP(model, **settings)
""",
        after="""\
import torch
import torch.nn as nn
from torch.distributed.fsdp import register_fsdp_forward_method

from fsdp2_support import shard


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        return self.head(self.embed(tokens))

    @torch.no_grad()
    def generate(self, tokens, steps):
        for _ in range(steps):
            token = self.forward(tokens)[:, -1:].argmax(-1)
            tokens = torch.cat((tokens, token), dim=1)
        return tokens


def sample(tokens, **settings):
    model = wrap(Decoder(), **settings)
    # TODO(fsdp-migrate FSDP411): Under mixed precision, floating-point inputs of generate() are now cast to param_dtype.
    return model.generate(tokens, 10)


def wrap(model, **settings):
    model = shard(model, **settings)
    register_fsdp_forward_method(model, "generate")
    return model
""",
        outcome=Outcome.REVIEW,
        support=("shard",),
    ),
    Example(
        title="methods that need no hooks, and one that does",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import GPT2LMHeadModel


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.head(x)

    def loss(self, x, y):
        return self.criterion(self(x), y)

    def logits(self, x):
        return self.head(x.flatten(1))

    def num_parameters(self):
        return sum(p.numel() for p in self.parameters()) + self.head.weight.numel()

    @staticmethod
    def collate(rows):
        return rows

    @property
    def width(self):
        return self.head.out_features


def evaluate(rows, tokens):
    model = FSDP(Classifier())
    print(model.num_parameters(), model.width)
    loss = model.loss(*model.collate(rows))
    return loss, model.logits(rows), FSDP(GPT2LMHeadModel()).generate(tokens)
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from transformers import GPT2LMHeadModel


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.head(x)

    def loss(self, x, y):
        return self.criterion(self(x), y)

    def logits(self, x):
        return self.head(x.flatten(1))

    def num_parameters(self):
        return sum(p.numel() for p in self.parameters()) + self.head.weight.numel()

    @staticmethod
    def collate(rows):
        return rows

    @property
    def width(self):
        return self.head.out_features


def evaluate(rows, tokens):
    model = Classifier()
    fully_shard(model)
    register_fsdp_forward_method(model, "logits")
    print(model.num_parameters(), model.width)
    loss = model.loss(*model.collate(rows))
    return loss, model.logits(rows), fully_shard(GPT2LMHeadModel()).generate(tokens)
""",
    ),
    Example(
        title="a method that forward calls too",
        before="""\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 8)
        self.text = nn.Linear(8, 8)

    def encode_image(self, image):
        return self.image(image)

    def forward(self, image, text):
        return self.encode_image(image) @ self.text(text).T


def features(images):
    model = FSDP(Tower())
    return [model.encode_image(image) for image in images]
""",
        after="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(8, 8)
        self.text = nn.Linear(8, 8)

    def encode_image(self, image):
        return self.image(image)

    def forward(self, image, text):
        return self.encode_image(image) @ self.text(text).T


def features(images):
    model = fully_shard(Tower())
    # TODO(fsdp-migrate FSDP411): forward() may call encode_image() too, so it gets no hooks of its own: as in FSDP1, it must compute with wrapped children only. Where it does not, register a method that only calls it.
    return [model.encode_image(image) for image in images]
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a model that is not sharded",
        source="""\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)


features = Net().encode(batch)
""",
    ),
    Keep(
        title="FSDP2's own model, registered already",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)


model = fully_shard(Net())
register_fsdp_forward_method(model, "encode")
features = model.encode(batch)
""",
    ),
    Keep(
        title="a method of DistributedDataParallel's module",
        source="""\
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def encode(self, x):
        return self.layer(x)


model = DDP(Net())
features = model.module.encode(batch)
""",
    ),
    Keep(
        title="an FSDP2 model whose method only calls it",
        source="""\
import torch.nn as nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

    def loss(self, x):
        return self(x).mean()


model = fully_shard(Net())
loss = model.loss(batch)
""",
    ),
    Keep(
        title="the generate of a transformers model",
        source="""\
from torch.distributed.fsdp import fully_shard
from transformers import GPT2LMHeadModel

model = GPT2LMHeadModel()
fully_shard(model)
tokens = model.generate(prompts)
""",
    ),
    Keep(
        title="a method of what is no module",
        source="""\
class Trainer:
    def __init__(self, model):
        self.model = model

    def loss(self, batch):
        return self.model(batch).mean()


Trainer(model).loss(batch)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    entry = next(e for e in methods.entries(study) if e.site is site)
    models = methods.constructors(entry, study)
    reason, help = methods.problem(entry, study)
    if reason:
        return study.left(site, RULE.code, reason, help, models=models)
    return study.rewritten(
        site,
        RULE.code,
        "its model has it registered",
        models=models,
        review=methods.review(entry, study),
    )
