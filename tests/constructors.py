"""Draw programs that call FSDP1's constructor, in every form that people write."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from hypothesis import strategies as st

from fsdp_migrate.fsdp1 import CONSTRUCTOR_ARGUMENTS

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

# What people pass; ``{m}`` is the model, names in angle brackets are FSDP1's.
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
    "limit_all_gathers": ["True", "False", "config.limit"],
    "use_orig_params": ["True", "False", "config.original"],
    "ignored_states": ["None", "list({m}.head.parameters())", "[{m}.head]", "config.states"],
    "device_mesh": ["None", "init_device_mesh('cuda', (2, 4))", "config.mesh", "mesh['dp']"],
}

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
)

HEADER = """\
import functools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
{imports}
from models import Block, Head, Net, build, log, train

NAME = "SHARD_GRAD_OP"
"""

BODY = """\


def is_block(module):
    return isinstance(module, Block)


def choose(module, recurse, nonwrapped_numel):
    return recurse or nonwrapped_numel > 100


def init(module):
    module.reset_parameters()


def main(self, model, models, config, rank, device, mesh, inner, outer, parts):
    log("before")  # stays
{body}
    log("after")  # stays


for result in main(*[Net()] * 10) or []:
    log(result)
"""


@dataclass(frozen=True)
class Program:
    """A program, and what it is about (for messages)."""

    source: str
    arguments: tuple[str, ...]


@st.composite
def programs(draw: st.DrawFn, names: tuple[str, ...] = CONSTRUCTOR_ARGUMENTS[1:]) -> Program:
    """A program with one call of the constructor."""
    model = draw(st.sampled_from(RECEIVERS))
    spelling = draw(st.sampled_from(SPELLINGS))
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    positional = draw(st.integers(0, 3)) if draw(st.booleans()) else 0
    first = CONSTRUCTOR_ARGUMENTS[1 : 1 + positional]
    used: set[str] = set()
    assignments: list[str] = []

    def value(name: str) -> str:
        text = draw(st.sampled_from(VALUES[name])).format(m=model)
        for fsdp1 in (*CONFIGS, *WRAP):
            if f"<{fsdp1}>" in text:
                used.add(fsdp1)
                prefix = "fsdp." if spelling.startswith("fsdp.") and fsdp1 in CONFIGS else ""
                text = text.replace(f"<{fsdp1}>", prefix + fsdp1)
        where = draw(st.sampled_from(("there", "there", "before")))
        if where == "before" and text != "None":
            assignments.append(f"{name}_ = {text}")
            return f"{name}_"
        return text

    arguments = [value(name) for name in first]
    arguments += [f"{name}={value(name)}" for name in chosen if name not in first]
    by_keyword = not first and draw(st.booleans()) and draw(st.booleans())
    call = _call(draw, spelling, f"module={model}" if by_keyword else model, arguments)
    target = model if not model.endswith(")") else "made"
    form = draw(st.sampled_from(FORMS))
    statement = form.format(call=call, m=target, fsdp=spelling)
    lines = ["made = 0", *assignments, statement]
    body = textwrap.indent("\n".join(lines), "    ")
    source = HEADER.format(imports=_imports(spelling, used)) + BODY.format(body=body)
    return Program(source, (*first, *chosen))


def _call(draw: st.DrawFn, spelling: str, model: str, arguments: list[str]) -> str:
    layout = draw(st.sampled_from(("one line", "many lines", "comments")))
    if layout == "one line":
        return f"{spelling}({', '.join([model, *arguments])})"
    ends = ["  # why" if layout == "comments" and i % 2 else "" for i in range(len(arguments) + 1)]
    lines = [f"    {a},{end}" for a, end in zip([model, *arguments], ends, strict=True)]
    return "\n".join([f"{spelling}(", *lines, ")"])


def _imports(spelling: str, used: set[str]) -> str:
    lines = []
    configs = sorted(used & set(CONFIGS))
    wrap = sorted(used & set(WRAP))
    if spelling.startswith("fsdp."):
        lines.append(f"import {PACKAGE} as fsdp")
    else:
        name = "FullyShardedDataParallel" + (" as FSDP" if spelling == "FSDP" else "")
        lines.append(f"from {PACKAGE} import {', '.join([name, *configs])}")
    if wrap:
        lines.append(f"from {PACKAGE}.wrap import {', '.join(wrap)}")
    return "\n".join(lines)
