"""Small programs that need more than the short form of something, or look as if they did.

There is one for each reason why a short form may not do (docs/design.md, *Native first*). Where the
code tells, the longer form is written at once; else ``migrate`` finds it.
``python -m tests.attempts.needs`` has it look for each, prints what came of it and renews the table
in ``docs/loop.md``; it goes on where it was stopped (``tests/attempts/records.py``). With words
after it, only those whose names hold one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from fsdp_migrate.cli import parser
from tests.attempts import records
from tests.attempts.records import Record, row

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
BUILD = """
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
"""
START = """
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(4, 4) for _ in range(4)]
    torch.manual_seed(0)
"""
END = """\
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
STEP = """
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)\n"
STEPS = f"{ADAM}for batch in batches:{STEP}"
MODEL = "model = FSDP(build())\n"
MOST_ATTEMPTS = 4


@dataclass(frozen=True)
class Need:
    """A program, and a piece of the form that holds."""

    name: str
    body: str
    holds: str
    imports: str = ""
    defined: str = BUILD
    ranks: int = 2
    asked: bool = False
    """Whether the code does not tell, so that it takes more than one attempt."""
    seen: str = ""
    """What is written at once instead, since a run of the original has shown that it is enough."""

    @property
    def program(self) -> str:
        body = textwrap.indent(textwrap.dedent(self.body).strip("\n"), "    ")
        return f"{HEAD}{self.imports}\n{self.defined}\n{START}{body}\n{END}"


def _fsdp(*names: str) -> str:
    return f"from torch.distributed.fsdp import {', '.join(names)}\n"


PRECISION, STATES = _fsdp("MixedPrecision"), _fsdp("FullStateDictConfig", "StateDictType")
POLICY = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"
NULL = "from contextlib import nullcontext\n"
SCALERS = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
FULL = "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
NUMBERED = "for number, batch in enumerate(batches):\n"
OF_PAIRS = """\
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
model = FSDP(build(), process_group=groups[dist.get_rank() // 2])
"""
AVERAGED = """\
    for p in module[2].parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""
SCALE = """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 1.3))

    def forward(self, x, times):
        return x * self.weight * times


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scale = Scale()

    def forward(self, x):
        times = torch.linspace(0.1, 0.7, 4, dtype=torch.float32)
        return self.scale(self.first(x), times).float()
"""
BUFFERED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("scale", torch.linspace(0.11, 0.77, 4))

    def forward(self, x):
        return self.first(x) * self.scale
"""
GENERATING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.tanh(self.first(x)) * self.scale

    def generate(self, x):
        for _ in range(3):
            x = torch.tanh(self.first(x)) * self.scale
        return x.sum().item()
"""
KEEPER = """

class Keeper:
    best = None

    def save_best(self, state):
        self.best = state
"""
DUMP = """

def dump(*things):
    for thing in things:
        if hasattr(thing, "state_dict"):
            state = thing.state_dict()
            if dist.get_rank() == 0:
                torch.save(state, "dumped.pt")
"""
RESTORE = """

def restore(model, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(state)
"""
RUN = """

def run(context, model, batch):
    with context():
        model(batch).square().mean().backward()
"""
STRATEGIES = """

STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "grads": ShardingStrategy.SHARD_GRAD_OP}


def told(strategy):
    return strategy.name.replace("_", " ").lower()
"""
READER = """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x, other=None):
        x = self.first(x)
        return x + self.other(other) if other is not None else self.second(x)
"""
EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        best = scores.argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = best == index
            if chosen.any():
                out[chosen] = expert(x[chosen]) * scores[chosen, index, None]
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Experts(), nn.Linear(4, 4), Experts())

    def forward(self, x):
        return self.layers(x)
"""
NEEDS = (
    Need(
        "float inputs of inner units",
        "model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Scale}),"
        " mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n" + STEPS,
        "cast_forward_inputs=False",
        PRECISION + POLICY,
        SCALE,
    ),
    Need(
        "float buffers of another dtype",
        "model = FSDP(Net(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16,"
        " buffer_dtype=torch.bfloat16))\n" + STEPS,
        "buffer.to(torch.bfloat16)",
        PRECISION,
        BUFFERED,
    ),
    Need(
        "a process group",
        f"group = dist.new_group([0, 1])\nmodel = FSDP(build(), process_group=group)\n{STEPS}",
        "DeviceMesh.from_group(group",
    ),
    Need(
        "the meta device on other ranks",
        "if dist.get_rank() == 0:\n    module = build()\n"
        'else:\n    with torch.device("meta"):\n        module = build()\n'
        "model = FSDP(module, sync_module_states=True,"
        ' param_init_fn=lambda m: m.to_empty(device="cpu", recurse=False))\n' + STEPS,
        "broadcast_from_rank0=True",
    ),
    Need(
        "an error in between that is survived",
        f"{MODEL}{SGD}{NUMBERED}"
        """
    last = number % 2 == 1
    try:
        with nullcontext() if last else model.no_sync():
            model(batch).square().mean().backward()
            if number == 2:
                raise ValueError("a bad batch")
    except ValueError:
        pass
    if last:
        optimizer.step()
        optimizer.zero_grad()
""",
        "def no_sync(model",
        NULL,
    ),
    Need(
        "a context for other code",
        f"{MODEL}{SGD}{NUMBERED}"
        """
    last = number % 2 == 1
    run(nullcontext if last else model.no_sync, model, batch)
    if last:
        optimizer.step()
        optimizer.zero_grad()
""",
        "def no_sync(model",
        NULL,
        BUILD + RUN,
    ),
    Need(
        "gradients that are dropped between micro-batches",
        f"{MODEL}{SGD}{NUMBERED}"
        """
    with nullcontext() if number % 2 else model.no_sync():
        model(batch).square().mean().backward()
    if number == 2:
        optimizer.zero_grad()
        continue
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
        "gradients that are reduced after every micro-batch for FSDP402",
        NULL,
        asked=True,
    ),
    Need(
        "clipping of ignored parameters",
        "module = build()\nmodel = FSDP(module, ignored_modules=[module[2]])\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)\n"
        "for batch in batches:\n    model(batch).square().mean().backward()\n"
        f"{AVERAGED}    model.clip_grad_norm_(0.01)\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        "def clip_grad_norm_(model",
    ),
    Need(
        "the infinity norm of empty shards",
        "model = FSDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))\n"
        f"{SGD}for batch in batches:\n    model(batch).square().mean().backward()\n"
        '    model.clip_grad_norm_(0.01, norm_type=float("inf"))\n    optimizer.step()\n'
        "    optimizer.zero_grad()\n",
        "def clip_any_grad_norm_(model",
    ),
    Need(
        "a whole state that outlives a step",
        f"{MODEL}{SGD}{NUMBERED}{STEP}    if number == 1:\n"
        f"{textwrap.indent(FULL, ' ' * 8)}            best = model.state_dict()\n"
        f"{FULL}    model.load_state_dict(best)\nprint(float(model(batches[0]).sum()))\n",
        "deepcopy(",
        STATES,
    ),
    Need(
        "a whole state that outlives a step, with buffers",
        "model = FSDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))\n"
        f"{SGD}{NUMBERED}{STEP}    if number == 1:\n"
        f"{textwrap.indent(FULL, ' ' * 8)}            best = model.state_dict()\n"
        f"{FULL}    model.load_state_dict(best)\nmodel.eval()\n"
        "print(float(model(batches[0]).sum()))\n",
        "a state with copies of what is sharded alone for FSDP302",
        STATES,
        asked=True,
    ),
    Need(
        "shards that are kept by what is called save",
        f"{MODEL}{SGD}keeper = Keeper()\n{NUMBERED}{STEP}    if number == 1:\n"
        "        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "            keeper.save_best(model.state_dict())\n"
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "    model.load_state_dict(keeper.best)\nprint(float(model(batches[0]).sum()))\n",
        "a copy of the state for FSDP302",
        STATES,
        BUILD + KEEPER,
        asked=True,
    ),
    Need(
        "a whole state of a group of ranks",
        f"{OF_PAIRS}{STEPS}config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
        "    state = model.state_dict()\nif state:\n"
        '    torch.save(state, f"{dist.get_rank()}.pt")\n',
        "full_model_state(model, cpu_offload=True)",
        STATES,
        ranks=4,
    ),
    Need(
        "a whole state on the CPU of every rank",
        f"{MODEL}{STEPS}config = FullStateDictConfig(offload_to_cpu=True, rank0_only=False)\n"
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
        '    state = model.state_dict()\ntorch.save(state, f"{dist.get_rank()}.pt")\n',
        "whole_on_cpu(get_model_state_dict(model))",
        STATES,
    ),
    Need(
        "loading beside ignored parameters",
        "module = build()\nfull = {k: v + 0.1 for k, v in module.state_dict().items()}\n"
        "model = FSDP(module, ignored_modules=[module[2]])\n"
        f"{FULL}    model.load_state_dict(full)\n{STEPS}",
        "load_full_model(model, full)",
        STATES,
    ),
    Need(
        "one dictionary for two models",
        "full = {k: v + 0.1 for k, v in build().state_dict().items()}\n"
        "model, other = FSDP(build()), FSDP(build())\nfor each in (model, other):\n"
        f"    restore(each, full)\nprint(float(other(batches[0]).sum()))\n{STEPS}",
        "set_model_state_dict(",
        STATES,
        BUILD + RESTORE,
    ),
    Need(
        "an optimizer state before the first step",
        f"model = FSDP(build(), use_orig_params=True)\n{ADAM}"
        "state = FSDP.optim_state_dict(model, optimizer)\n"
        "optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))\n"
        f"for batch in batches:{STEP}",
        "optimizer.state",
        STATES,
    ),
    Need(
        "a group without parameters",
        "model = FSDP(build(), use_orig_params=True)\n"
        "optimizer = torch.optim.AdamW([\n"
        '    {"params": [p for n, p in model.named_parameters() if "norm" not in n]},\n'
        '    {"params": [p for n, p in model.named_parameters() if "norm" in n],'
        ' "weight_decay": 0.0},\n], lr=0.05)\n'
        f"for batch in batches[:2]:{STEP}"
        "state = FSDP.optim_state_dict(model, optimizer)\n"
        "optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))\n"
        'print([g["weight_decay"] for g in optimizer.param_groups])\n'
        f"for batch in batches:{STEP}",
        "optimizer",
        STATES,
    ),
    Need(
        "the optimizer's own state in files of the ranks",
        f"{MODEL}{ADAM}{NUMBERED}{STEP}    if number == 1:\n"
        '        torch.save(optimizer.state_dict(), f"{dist.get_rank()}.pt")\n'
        '        optimizer.load_state_dict(torch.load(f"{dist.get_rank()}.pt"))\n',
        "optimizer.state_dict()",
    ),
    Need(
        "changes that need the whole shape",
        f"{MODEL}{SGD}for batch in batches:{STEP}"
        "    with FSDP.summon_full_params(model), torch.no_grad():\n"
        "        for p in model.parameters():\n            if p.dim() == 2:\n"
        "                p.div_(p.norm(dim=0, keepdim=True))\n",
        "with full_params(model), torch.no_grad():",
    ),
    Need(
        "a method beside forward",
        f"model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}))\n{STEPS}"
        "model(batches[0])\n"
        "with FSDP.summon_full_params(model, recurse=False, writeback=False), torch.no_grad():\n"
        "    print(model.generate(batches[0][:1]))\n",
        "generate(batches[0][:1])",
        POLICY,
        GENERATING,
    ),
    Need(
        "a state that other code asks for",
        f"{MODEL}FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n{STEPS}"
        "dump(model)\n",
        "a model that keeps the kind of its state for FSDP309",
        STATES,
        BUILD + DUMP,
        asked=True,
        seen="get_model_state_dict(",
    ),
    Need(
        "overflows of several groups",
        f'{OF_PAIRS}scaler = ShardedGradScaler(device="cpu", growth_interval=2)\n{SGD}{NUMBERED}'
        """
    loss = model(batch).square().mean()
    if number == 1 and dist.get_rank() == 3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        "a GradScaler by which all ranks of a group agree for FSDP405",
        SCALERS,
        ranks=4,
        asked=True,
    ),
    Need(
        "arguments from a file",
        'if dist.get_rank() == 0:\n    with open("settings.json", "w") as file:\n'
        '        json.dump({"limit_all_gathers": True, "use_orig_params": True}, file)\n'
        'dist.barrier()\nwith open("settings.json") as file:\n    given = json.load(file)\n'
        f"model = FSDP(build(), **given)\n{STEPS}",
        "shard(build(), **given)",
        "import json\n",
    ),
    Need(
        "arguments from a command line",
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--set", nargs="*", default=["limit_all_gathers=1"])\n'
        'asked = [each.split("=") for each in parser.parse_args().set]\n'
        f"model = FSDP(build(), **{{key: bool(int(value)) for key, value in asked}})\n{STEPS}",
        "shard(build(), **",
        "import argparse\n",
    ),
    Need(
        "a strategy that is asked for its name",
        'strategy = STRATEGIES[os.environ.get("STRATEGY", "grads")]\n'
        f"print(told(strategy))\nmodel = FSDP(build(), sharding_strategy=strategy)\n{STEPS}",
        "class ShardingStrategy(enum.Enum)",
        f"import os\n{_fsdp('ShardingStrategy')}",
        BUILD + STRATEGIES,
    ),
    Need(
        "a state of rank 0 that outlives a step",
        "config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
        f"{MODEL}{SGD}{NUMBERED}{STEP}    if number == 1:\n"
        "        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):\n"
        "            best = model.state_dict()\n"
        'if dist.get_rank() == 0:\n    torch.save(best, "best.pt")\n',
        "cpu_offload=True",
        STATES,
    ),
    Need(
        "loading beside offloaded parameters",
        "full = {k: v + 0.1 for k, v in build().state_dict().items()}\n"
        "model = FSDP(build(), cpu_offload=CPUOffload(offload_params=True))\n"
        f"{FULL}    model.load_state_dict(full)\n{STEPS}",
        "set_model_state_dict(",
        f"{STATES}{_fsdp('CPUOffload')}",
    ),
    Need(
        "parts that a step leaves out",
        "model = FSDP(Reader())\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.05)\n"
        f"{NUMBERED}"
        """
    other = batch if (number + dist.get_rank()) % 2 else None
    model(batch, other=other).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        "gradients of zero for what a step leaves out for FSDP420",
        "",
        READER,
        asked=True,
    ),
    Need(
        "experts that a step leaves out",
        f"model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Experts}}))\n{STEPS}",
        "gradients of zero for what a step leaves out for FSDP420",
        POLICY,
        EXPERTS,
        asked=True,
    ),
)


# Which short form each is about, and when that is not enough.
ROWS = (
    ("a strategy by its name", "the enum itself is asked", "a strategy that is asked for its name"),
    ("arguments put together", "they come from a file", "arguments from a file"),
    ("arguments put together", "or a command line", "arguments from a command line"),
    ("MixedPrecision", "inner units get float inputs", "float inputs of inner units"),
    ("buffer_dtype", "the dtype differs", "float buffers of another dtype"),
    ("process_group", "", "a process group"),
    ("sync_module_states", "others are on the meta device", "the meta device on other ranks"),
    ("no_sync", "an error is survived", "an error in between that is survived"),
    ("no_sync", "other code enters it", "a context for other code"),
    ("no_sync", "gradients are dropped", "gradients that are dropped between micro-batches"),
    ("clip_grad_norm_", "parameters are ignored", "clipping of ignored parameters"),
    ("clip_grad_norm_", "a shard is empty", "the infinity norm of empty shards"),
    ("a whole state of rank 0", "it outlives a step", "a state of rank 0 that outlives a step"),
    ("a whole state of rank 0", "of a group of ranks", "a whole state of a group of ranks"),
    ("a whole state", "it outlives a step", "a whole state that outlives a step"),
    ("a whole state", "and has buffers", "a whole state that outlives a step, with buffers"),
    ("a whole state", "on every rank's CPU", "a whole state on the CPU of every rank"),
    ("a sharded state", "it outlives a step", "shards that are kept by what is called save"),
    ("loading a whole state", "parameters are ignored", "loading beside ignored parameters"),
    ("loading a whole state", "parameters are offloaded", "loading beside offloaded parameters"),
    ("loading a whole state", "it is loaded twice", "one dictionary for two models"),
    ("an optimizer's state", "before the first step", "an optimizer state before the first step"),
    ("an optimizer's state", "a group is empty", "a group without parameters"),
    ("an optimizer's own state", "", "the optimizer's own state in files of the ranks"),
    ("summon_full_params", "the shape is needed", "changes that need the whole shape"),
    ("summon_full_params", "around a method", "a method beside forward"),
    ("set_state_dict_type", "other code asks", "a state that other code asks for"),
    ("ShardedGradScaler", "there are several groups", "overflows of several groups"),
    ("unused parameters", "they differ by rank", "parts that a step leaves out"),
    ("unused parameters", "in parts of a unit", "experts that a step leaves out"),
)


@dataclass(frozen=True)
class Found:
    """What ``migrate`` made of it."""

    need: Need
    record: Record

    @property
    def attempts(self) -> int:
        return sum(bool(attempt["reports"]) for attempt in self.record["attempts"])

    @property
    def others(self) -> list[str]:
        """What is not in its first form."""
        return [other["what"] for other in self.record["other_forms"]]

    @property
    def holds(self) -> bool:
        """Whether nothing is left, in few attempts, and in the form that is expected."""
        record = self.record
        done = record["same_training"] and not record["left"] and record["code"] == 0
        searched = self.need.asked and not self.need.seen
        few = self.attempts <= MOST_ATTEMPTS and (self.attempts > 1) is searched
        form = self.others if searched else [record["written"]]
        return done and few and any((self.need.seen or self.need.holds) in each for each in form)

    @property
    def line(self) -> str:
        word = "holds" if self.holds else "DOES NOT HOLD"
        forms = ", ".join(self.others) or "as written"
        return f"{word}, {self.attempts} attempts: {self.need.name} ({forms})"


def project(need: Need, folder: Path) -> Path:
    """The program in a project of its own."""
    made = folder / "project"
    made.mkdir()
    (made / "pyproject.toml").touch()
    (made / "train.py").write_text(need.program, encoding="utf-8")
    return made


def search(need: Need, folder: Path) -> Found:
    """Let ``migrate`` look for the form that holds, below ``folder``."""
    made = project(need, folder)
    answer = folder / "answer.json"
    arguments = ["-q", "--nproc", str(need.ranks), "-o", str(answer)]
    with contextlib.chdir(made), mock.patch.dict(os.environ):
        os.environ["FSDP_MIGRATE_STATE"] = str(folder / "state")
        code = parser.run(["migrate", "train.py", *arguments])
    written = [path.read_text(encoding="utf-8") for path in sorted(made.glob("*.py"))]
    said = json.loads(answer.read_text(encoding="utf-8"))
    return Found(need, {**said, "code": code, "written": "\n".join(written)})


# -- telling --------------------------------------------------------------------------------------

TABLE = "needs"
TOP = row("short form of", "not enough when", "the form that holds", "attempts", "s", "")
TOP += "\n|---|---|---|--:|--:|---|"
BY_NAME = {need.name: need for need in NEEDS}


def measure(name: str) -> Record:
    with tempfile.TemporaryDirectory() as folder:
        return search(BY_NAME[name], Path(folder)).record


def line(found: Found) -> str:
    ((about, when),) = [(a, w) for a, w, name in ROWS if name == found.need.name]
    form = ", ".join(found.others) or f"`{found.need.seen or found.need.holds}`"
    word = "" if found.holds else "**does not hold**"
    return row(about, when or found.need.name, form, found.attempts, _seconds(found), word)


def _seconds(found: Found) -> str:
    return f"{found.record['seconds']:.0f}"


def main(arguments: Sequence[str]) -> int:
    asked = records.asked("tests.attempts.needs", __doc__, arguments)
    names = [name for _, _, name in ROWS]
    chosen = records.chosen(names, asked.words)
    for name, record in records.measured(TABLE, chosen, measure, again=asked.again):
        print(Found(BY_NAME[name], record).line, flush=True)
    kept = records.kept(TABLE, names)
    found = [Found(BY_NAME[name], record) for name, record in kept.items()]
    good = sum(each.holds for each in found)
    most = max(each.attempts for each in found)
    told = f"{len(found)} programs: {good} hold, in at most {most} attempts."
    print(told)
    rows = [line(each) for each in found]
    records.renew(TABLE, [TOP, *rows, "", told, records.revisions([*kept.values()])])
    return int(good < len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
