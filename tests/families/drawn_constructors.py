"""Draw programs that call FSDP1's constructor, in every form that people write."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from fsdp_migrate.fsdp1.api import CONSTRUCTOR_ARGUMENTS

PACKAGE = "torch.distributed.fsdp"
CONFIGS = ("BackwardPrefetch", "CPUOffload", "MixedPrecision", "ShardingStrategy")
WRAP = (
    "CustomPolicy",
    "ModuleWrapPolicy",
    "_or_policy",
    "always_wrap_policy",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
)
STATES = ("FullStateDictConfig", "StateDictType")
# Where a value is made.
PLACES = (
    "at the call",
    "at the call",
    "in the function",
    "in the file",
    "in another file",
    "from a function",
)
# What only the function that calls has.
LOCAL = re.compile(r"\b(?:config|rank|device|mesh|inner|outer|self|model|models|made|NAME)\b(?!')")

# What people pass; ``{m}`` is the model, names in angle brackets are FSDP1's.
FLAG = ["True", "False", "config.flag"]  # of an argument that is not in the table
VALUES: dict[str, list[str]] = {
    "process_group": [
        "None",
        "dist.group.WORLD",
        "dist.new_group()",
        "config.group",
        "(inner, outer)",
    ],
    "sharding_strategy": [
        "None",
        "<ShardingStrategy>.FULL_SHARD",
        "<ShardingStrategy>.SHARD_GRAD_OP",
        "<ShardingStrategy>.HYBRID_SHARD",
        "<ShardingStrategy>._HYBRID_SHARD_ZERO2",
        "<ShardingStrategy>.NO_SHARD",
        "<ShardingStrategy>[config.strategy]",
        "getattr(<ShardingStrategy>, NAME)",
        "<ShardingStrategy>.FULL_SHARD if config.full else <ShardingStrategy>.SHARD_GRAD_OP",
        "config.strategy",
    ],
    "cpu_offload": [
        "None",
        "<CPUOffload>()",
        "<CPUOffload>(offload_params=True)",
        "<CPUOffload>(True)",
        "<CPUOffload>(offload_params=config.offload)",
        "<CPUOffload>(offload_params=True) if config.offload else None",
    ],
    "auto_wrap_policy": [
        "None",
        "<ModuleWrapPolicy>({{Block}})",
        "<ModuleWrapPolicy>([Block, Head])",
        "<ModuleWrapPolicy>(set(config.classes))",
        "functools.partial(<transformer_auto_wrap_policy>, transformer_layer_cls={{Block}})",
        "functools.partial(<size_based_auto_wrap_policy>, min_num_params=config.least)",
        "functools.partial(<lambda_auto_wrap_policy>, lambda_fn=lambda m: isinstance(m, Block))",
        "functools.partial(<lambda_auto_wrap_policy>, lambda_fn=is_block)",
        "<size_based_auto_wrap_policy>",
        "<always_wrap_policy>",
        "<CustomPolicy>(is_block)",
        "<CustomPolicy>(lambda module: isinstance(module, Block))",
        "functools.partial(<_or_policy>, policies=[<always_wrap_policy>, choose])",
        "functools.partial(<_or_policy>, policies=[<ModuleWrapPolicy>({{Block}})])",
        "<ModuleWrapPolicy>({{Block}}) if config.wrap else None",
        "choose",
        "config.policy",
    ],
    "backward_prefetch": [
        "None",
        "<BackwardPrefetch>.BACKWARD_PRE",
        "<BackwardPrefetch>.BACKWARD_POST",
        "config.prefetch",
    ],
    "mixed_precision": [
        "None",
        "<MixedPrecision>()",
        "<MixedPrecision>(param_dtype=torch.bfloat16)",
        "<MixedPrecision>(torch.bfloat16, torch.float32, torch.bfloat16)",
        "<MixedPrecision>(param_dtype=config.dtype, reduce_dtype=config.dtype)",
        "<MixedPrecision>(param_dtype=torch.float16, cast_forward_inputs=True)",
        "<MixedPrecision>(param_dtype=torch.bfloat16, keep_low_precision_grads=True)",
        "<MixedPrecision>(param_dtype=torch.bfloat16) if config.half else None",
        "config.precision",
    ],
    "ignored_modules": ["None", "[{m}.head]", "list({m}.frozen)", "config.ignored"],
    "param_init_fn": [
        "None",
        "lambda module: module.to_empty(device=device, recurse=False)",
        "init",
        "config.init",
    ],
    "device_id": [
        "None",
        "0",
        "rank",
        "device",
        "torch.cuda.current_device()",
        "torch.device('cuda', rank)",
        "torch.device('cpu')",
    ],
    "sync_module_states": ["False", "True", "config.sync"],
    "forward_prefetch": ["False", "True", "config.prefetch"],
    "ignored_states": ["None", "list({m}.head.parameters())", "[{m}.head]", "config.states"],
    "device_mesh": ["None", "init_device_mesh('cuda', (2, 4))", "config.mesh", "mesh['dp']"],
}

# Fields of ``config`` that FSDP1 takes None for.
OPTIONAL = ("group", "strategy", "policy", "precision", "ignored", "init", "states", "mesh")

SPELLINGS = ("FSDP", "FullyShardedDataParallel", "fsdp.FullyShardedDataParallel")
RECEIVERS = ("model", "self.model", "models[0]", "Net()", "build(config)")

# ``{call}`` is the constructor call, ``{m}`` the model; all stand in a function body.
FORMS = (
    "{m} = {call}",
    "wrapped = {call}",
    "wrapped: {fsdp} = {call}",
    "{call}",
    "return {call}",
    "train({call}, config)",
    "train(model={call})",
    "if config.shard:\n    {m} = {call}\nelse:\n    log('not sharded')",
    "for part in parts:\n    {m} = {call}",
    "try:\n    {m} = {call}\nexcept RuntimeError:\n    raise",
    "with torch.device('cuda'):\n    {m} = {call}",
    "wrapped = {call} if config.shard else {m}",
    "wrapped = [{call} for _ in range(2)]",
    "wrapped = lambda: {call}",
    "def later(made={call}):\n    return made",
    "if (wrapped := {call}) is not None:\n    log(wrapped)",
    "wrapped, other = {call}, 1",
    "wrapped = other = {call}",
    "wrapped = {{'model': {call}}}",
    "wrapped = {call}.cuda()",
    "wrapped = config.shard and {call}",
    "assert {call}",
    "yield {call}",
    "{m} = {call}; log({m})",
    "if config.shard: {m} = {call}",
    "setattr(self, 'net', {call})",
    "self.net: torch.nn.Module = {call}",
    "models[1] = {call}",
    "wrapped = [{call}, {m}]",
    "wrapped = torch.nn.Sequential({call}, {call})",
    "wrapped = {call}.to(device).eval()",
    "wrapped = {call} if config.shard else None",
)

# How the constructor is called.
CALLEES = ("by name", "by name", "by name", "by name", "by partial", "by condition")
# A part of the model that is wrapped by itself, ``{part}``, and when.
PARTS = {
    "before": "{m}.head = {part}",
    "in a loop before": "for i, block in enumerate({m}.blocks):\n    {m}.blocks[i] = {part}",
    "by setattr before": "for i, block in enumerate({m}.children()):\n"
    "    setattr({m}, str(i), {part})",
    "after": "{m}.head = {part}",
}

# Everything that must be drawn sooner or later.
EXPECTED = frozenset(
    {
        *(f"form {form}" for form in FORMS),
        *(f"by keyword {name}" for name in CONSTRUCTOR_ARGUMENTS),
        *(f"by position {name}" for name in CONSTRUCTOR_ARGUMENTS),
        *CALLEES,
        *(f"part {when}" for when in PARTS),
    }
)

# What becomes of a model, after a constructor that stands in a straight line.
USES = (
    "with {m}.no_sync():\n    {m}(1).backward()",
    "context = {m}.no_sync if config.last else log",
    "norm = {m}.clip_grad_norm_(config.clip)\nlog(norm)",
    "{m}.clip_grad_norm_(1.0, norm_type=config.norm)",
    "state = {m}.state_dict()",
    "if rank == 0:\n    torch.save({m}.state_dict(), 'model.pt')",
    "{m}.load_state_dict(config.state, strict=False)",
    (
        "with <FSDP>.state_dict_type({m}, <StateDictType>.FULL_STATE_DICT):\n"
        "    state = {m}.state_dict()"
    ),
    (
        "with <FSDP>.state_dict_type(\n    {m},\n    <StateDictType>.FULL_STATE_DICT,\n"
        "    <FullStateDictConfig>(offload_to_cpu=True, rank0_only=True),\n):\n"
        "    state = {{'model': {m}.state_dict(), 'step': 1}}\n    torch.save(state, 'model.pt')"
    ),
    (
        "with <FSDP>.state_dict_type({m}, <StateDictType>.SHARDED_STATE_DICT):\n"
        "    {m}.load_state_dict(config.state)"
    ),
    "with <FSDP>.state_dict_type({m}, config.kind):\n    state = {m}.state_dict()",
    (
        "with <FSDP>.state_dict_type({m}, <StateDictType>.LOCAL_STATE_DICT):\n"
        "    log({m}.state_dict())"
    ),
    "<FSDP>.set_state_dict_type({m}, <StateDictType>.SHARDED_STATE_DICT)\nlog({m}.state_dict())",
    "optimizer = torch.optim.AdamW({m}.parameters())",
    "log(<FSDP>.optim_state_dict({m}, config.optimizer))",
    (
        "flat = <FSDP>.optim_state_dict_to_load({m}, config.optimizer, config.state)\n"
        "config.optimizer.load_state_dict(flat)"
    ),
    "log(<FSDP>.full_optim_state_dict({m}, config.optimizer))",
    "with <FSDP>.summon_full_params({m}, writeback=False):\n    log({m})",
    "with torch.no_grad(), <FSDP>.summon_full_params({m}):\n    {m}.head.zero_()",
    "if isinstance({m}, <FSDP>):\n    log(len(<FSDP>.fsdp_modules({m})))",
    "log({m}.module.head)",
    "log([n.replace('_fsdp_wrapped_module.', '') for n in {m}.names()])",
    "{m}.apply(init)",
    "def check(model: <FSDP>) -> bool:\n    return isinstance(model, (<FSDP>, Net))",
    "{m} = torch.compile({m})",
    "log({m}.forward(1))",
    "for p in {m}.parameters():\n    p.data = p.data * 0.5",
    "for p, q in zip({m}.parameters(), parts):\n    p.mul_(0.5).add_(q)",
    "decay = [p for p in {m}.parameters() if p.ndim > 1]\nlog(decay)",
    "norm = torch.nn.utils.clip_grad_norm_({m}.parameters(), 1.0)\nlog(norm)",
    "if hasattr({m}, 'no_sync'):\n    log({m}.no_sync)",
    "log(<FSDP>.sharded_optim_state_dict({m}, config.optimizer))",
)
STRAIGHT = 2  # so many forms bind the model in a straight line

HEADER = """\
import functools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
{imports}
from models import Block, Head, Net, build, is_block, choose, init, log, train
"""

BODY = """\

{constants}

def main(self, model, models, config, rank, device, mesh, inner, outer, parts):
    log("before")  # stays
{body}
    log("after")  # stays


for result in main(*[Net()] * 10) or []:
    log(result)
"""

MODELS = """\
class Block:
    pass


def is_block(module):
    return isinstance(module, Block)


def choose(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 100


def init(module):
    module.reset_parameters()


def log(*_):
    pass
"""


@dataclass(frozen=True)
class Program:
    """A program of a few files, ``example.py`` its entry."""

    files: dict[str, str]
    drawn: frozenset[str] = frozenset()  # of EXPECTED

    @property
    def source(self) -> str:
        return self.files["example.py"]


class _File:
    """One file being written: its spelling of FSDP1 and what it has to import."""

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling
        self.used: set[str] = set()
        self.lines: list[str] = []
        self.own: list[str] = []  # imported from settings.py

    def spelled(self, text: str) -> str:
        """``text`` with FSDP1's names, in angle brackets, as this file imports them."""
        text = text.replace("<FSDP>", self.spelling)
        for name in (*CONFIGS, *STATES, *WRAP):
            if f"<{name}>" in text:
                self.used.add(name)
                dotted = self.spelling.startswith("fsdp.") and name not in WRAP
                text = text.replace(f"<{name}>", f"fsdp.{name}" if dotted else name)
        return text

    def header(self) -> str:
        lines = []
        if self.spelling.startswith("fsdp."):
            lines.append(f"import {PACKAGE} as fsdp")
        else:
            name = "FullyShardedDataParallel" + (" as FSDP" if self.spelling == "FSDP" else "")
            plain = sorted(self.used - set(WRAP))
            lines.append(f"from {PACKAGE} import {', '.join([name, *plain])}")
        if self.used & set(WRAP):
            lines.append(f"from {PACKAGE}.wrap import {', '.join(sorted(self.used & set(WRAP)))}")
        if self.own:
            lines.append(f"from settings import {', '.join(self.own)}")
        return HEADER.format(imports="\n".join(lines))


@st.composite
def programs(draw: st.DrawFn, wanted: str = "") -> Program:
    """A program that calls the constructor once or twice, its values from anywhere.

    ``wanted`` is the form of its last call, if given.
    """
    example = _File(draw(st.sampled_from(SPELLINGS)))
    settings = _File(draw(st.sampled_from(SPELLINGS)))
    body = ["made, NAME = 0, 'FULL_SHARD'"]
    constants: list[str] = []
    names: dict[str, str] = {}
    drawn: set[str] = set()

    def value(argument: str, model: str) -> str:
        if argument in names and draw(st.booleans()):
            return names[argument]  # what another call got
        raw = draw(st.sampled_from(VALUES.get(argument, FLAG))).format(m=model)
        place = draw(st.sampled_from(PLACES)) if model != "block" else "at the call"
        free = not LOCAL.search(raw)
        name = f"{argument}_{len(body)}"
        if place == "in the function" and raw != "None":
            body.append(f"{name} = {example.spelled(raw)}")
        elif place == "in the file" and free:
            constants.append(f"{name} = {example.spelled(raw)}")
        elif place == "in another file" and free:
            settings.lines.append(f"{name} = {settings.spelled(raw)}")
            example.own.append(name)
        elif place == "from a function" and not LOCAL.search(raw.replace("config.", "")):
            made = settings.spelled(raw)
            settings.lines.append(f"\n\ndef make_{name}(config):\n    return {made}\n")
            example.own.append(f"make_{name}")
            return f"make_{name}(config)"
        else:
            return example.spelled(raw)
        if model not in raw:
            names[argument] = name
        return name

    for further in reversed(range(draw(st.sampled_from((1, 1, 2))))):
        model = draw(st.sampled_from(RECEIVERS))
        target = model if not model.endswith(")") else "made"
        when = draw(st.sampled_from(("", "", "", *PARTS))) if target == model else ""
        part = ""
        if when:
            inner = "block" if "in a loop" in when or "setattr" in when else f"{target}.head"
            wrapped = _call(draw, example.spelling, inner, value, drawn)
            part = PARTS[when].format(m=target, part=_indented(wrapped, PARTS[when]))
            drawn.add(f"part {when}")
        if part and when != "after":
            body.append(part)
        call = _call(draw, example.spelling, model, value, drawn)
        last = wanted if not further else ""
        straight = draw(st.booleans()) and last in ("", *FORMS[:STRAIGHT])
        form = last or draw(st.sampled_from(FORMS[:STRAIGHT] if straight else FORMS))
        drawn.add(f"form {form}")
        body.append(form.format(call=call, m=target, fsdp=example.spelling))
        if when == "after":
            body.append(part)
        if straight:
            bound = target if form.startswith("{m}") else "wrapped"
            uses = draw(st.lists(st.sampled_from(USES), max_size=3))
            body += [example.spelled(use.format(m=bound)) for use in uses]
    indented = textwrap.indent("\n".join(body), "    ")
    source = BODY.format(constants="\n".join(constants), body=indented)
    files = {"example.py": example.header() + source, "models.py": MODELS}
    if settings.lines:
        files["settings.py"] = settings.header() + "\n" + "\n".join(settings.lines) + "\n"
    return Program(files, frozenset(drawn))


def _indented(call: str, form: str) -> str:
    """A call on many lines where the form stands deeper."""
    return call.replace("\n", "\n    ") if "\n" in form else call


def _call(
    draw: st.DrawFn,
    spelling: str,
    model: str,
    value: Callable[[str, str], str],
    drawn: set[str],
) -> str:
    """The constructor call: arguments by position and by keyword, on one line or on many."""
    chosen = draw(st.lists(st.sampled_from(CONSTRUCTOR_ARGUMENTS[1:]), unique=True, max_size=5))
    callee = draw(st.sampled_from(CALLEES))
    every = len(CONSTRUCTOR_ARGUMENTS) - 1
    positional = draw(st.sampled_from((0, 0, 0, 0, 1, 2, 3, 7, every)))
    if callee == "by partial":
        positional = 0
    first = CONSTRUCTOR_ARGUMENTS[1 : 1 + positional]
    by_keyword = not first and draw(st.integers(0, 5)) == 0
    drawn |= {callee, f"by {'keyword' if by_keyword else 'position'} module"}
    drawn |= {f"by position {name}" for name in first}
    drawn |= {f"by keyword {name}" for name in chosen if name not in first}
    arguments = [value(name, model) for name in first]
    arguments += [f"{name}={value(name, model)}" for name in chosen if name not in first]
    given = f"module={model}" if by_keyword else model
    if callee == "by partial":
        return f"functools.partial({', '.join([spelling, *arguments])})({given})"
    if callee == "by condition":
        spelling = f"({spelling} if config.shard else log)"
    arguments.insert(0, given)
    layout = draw(st.sampled_from(("one line", "many lines", "comments")))
    if layout == "one line":
        return f"{spelling}({', '.join(arguments)})"
    ends = ["  # why" if layout == "comments" and i % 2 else "" for i in range(len(arguments))]
    lines = [f"    {a},{end}" for a, end in zip(arguments, ends, strict=True)]
    return "\n".join([f"{spelling}(", *lines, ")"])
