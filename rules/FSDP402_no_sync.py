"""Accumulate gradients with `set_requires_gradient_sync`.

## What changes
`model.no_sync()` becomes `no_sync(model)`, a support context manager that switches gradient
reduction off and on again. Under SHARD_GRAD_OP it also keeps parameters gathered between
micro-batches, as FSDP1 did.

## Why
FSDP2 has a setter instead of a context manager; it must be set back, also after an exception.

## What stays for you
With `reduce_dtype` wider than `param_dtype`, FSDP2 accumulates unsynchronised gradients in
`reduce_dtype` (FSDP1 in `param_dtype`): better numerics, not the same last digits. What was
accumulated waits for its reduction where neither `zero_grad()` nor `p.grad` reach it: code that drops
it, clips it or looks at it in the middle of an accumulation is marked.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`set_requires_gradient_sync`)
- test/distributed/_composable/fsdp/test_fully_shard_mixed_precision.py
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study, block_of, sentences
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.syntax.scopes import FUNCTIONS

RULE = Rule(code="FSDP402", name="no_sync", handles=("FullyShardedDataParallel.no_sync",))

EXAMPLES = [
    Example(
        title="around the micro-batches but the last",
        before="""\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for index, batch in enumerate(batches):
    with nullcontext() if index == last else model.no_sync():
        model(batch).backward()
""",
        after="""\
from contextlib import nullcontext

from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync

model = fully_shard(model)
for index, batch in enumerate(batches):
    with nullcontext() if index == last else no_sync(model):
        model(batch).backward()
""",
        support=("no_sync",),
    ),
    Example(
        title="under SHARD_GRAD_OP parameters stay gathered",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
with model.no_sync():
    model(batch).backward()
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync

model = fully_shard(model, reshard_after_forward=False)
with no_sync(model, keep_unsharded=True):
    model(batch).backward()
""",
        support=("no_sync",),
    ),
    Example(
        title="two models of different strategies",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

small = FSDP(small, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
large = FSDP(large)
for model in (small, large):
    with model.no_sync():
        model(batch).backward()
""",
        after="""\
from torch.distributed.fsdp import fully_shard

small = fully_shard(small, reshard_after_forward=False)
large = fully_shard(large)
for model in (small, large):
    # TODO(fsdp-migrate FSDP402): Models of different sharding strategies meet here. Call set_requires_gradient_sync on each.
    with model.no_sync():
        model(batch).backward()
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="the method is kept for later",
        before="""\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
context = model.no_sync if accumulate else nullcontext
""",
        after="""\
from contextlib import nullcontext
from functools import partial

from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync

model = fully_shard(model)
context = partial(no_sync, model) if accumulate else nullcontext
""",
        support=("no_sync",),
    ),
    Example(
        title="gradients reduced in another dtype than they are computed in",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def accumulate(net, batches):
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(net, mixed_precision=half)
    with model.no_sync():
        for batch in batches:
            model(batch).sum().backward()
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp2_support import no_sync


def accumulate(net, batches):
    half = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    model = fully_shard(net, mp_policy=replace(half, cast_forward_inputs=True))
    # TODO(fsdp-migrate FSDP402): Unsynchronised gradients are now accumulated in reduce_dtype, which is more precise than FSDP1's param_dtype.
    with no_sync(model):
        for batch in batches:
            model(batch).sum().backward()
""",
        outcome=Outcome.REVIEW,
        support=("no_sync",),
    ),
    Example(
        title="a step that is given up",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer):
    model = FSDP(net)
    for first, second in batches:
        with model.no_sync():
            model(first).sum().backward()
        loss = model(second).sum()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer):
    model = fully_shard(net)
    for first, second in batches:
        # TODO(fsdp-migrate FSDP402): zero_grad() no longer drops gradients that wait for their reduction: where a step is given up below, they go into the next one.
        with no_sync(model):
            model(first).sum().backward()
        loss = model(second).sum()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        outcome=Outcome.REVIEW,
        support=("no_sync",),
    ),
    Example(
        title="a step every second batch",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer):
    model = FSDP(net)
    for index, batch in enumerate(batches):
        if index % 2 == 0:
            with model.no_sync():
                model(batch).sum().backward()
            continue
        model(batch).sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
            continue
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer):
    model = fully_shard(net)
    for index, batch in enumerate(batches):
        if index % 2 == 0:
            with no_sync(model):
                model(batch).sum().backward()
            continue
        model(batch).sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
            continue
""",
        support=("no_sync",),
    ),
    Example(
        title="gradients are dropped before every micro-batch",
        before="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer, every):
    model = FSDP(net)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        last = (index + 1) % every == 0
        with nullcontext() if last else model.no_sync():
            model(batch).sum().backward()
        if last:
            optimizer.step()
""",
        after="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer, every):
    model = fully_shard(net)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        last = (index + 1) % every == 0
        # TODO(fsdp-migrate FSDP402): zero_grad() no longer drops gradients that wait for their reduction: where it comes between micro-batches, they go into the step.
        with nullcontext() if last else no_sync(model):
            model(batch).sum().backward()
        if last:
            optimizer.step()
""",
        outcome=Outcome.REVIEW,
        support=("no_sync",),
    ),
    Example(
        title="gradients are dropped between two micro-batches",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def probe(net, first, second, optimizer):
    model = FSDP(net)
    with model.no_sync():
        model(first).sum().backward()
    optimizer.zero_grad()
    model(second).sum().backward()
    optimizer.step()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def probe(net, first, second, optimizer):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP402): zero_grad() no longer drops gradients that wait for their reduction: where it comes between micro-batches, they go into the step.
    with no_sync(model):
        model(first).sum().backward()
    optimizer.zero_grad()
    model(second).sum().backward()
    optimizer.step()
""",
        outcome=Outcome.REVIEW,
        support=("no_sync",),
    ),
    Example(
        title="gradients are clipped after every micro-batch",
        before="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer, every):
    model = FSDP(net)
    for index, batch in enumerate(batches):
        last = (index + 1) % every == 0
        with nullcontext() if last else model.no_sync():
            model(batch).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
        after="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer, every):
    model = fully_shard(net)
    for index, batch in enumerate(batches):
        last = (index + 1) % every == 0
        # TODO(fsdp-migrate FSDP402): Gradients that wait for their reduction are not in p.grad: what reads or clips gradients between micro-batches passes over them, do it before the step.
        with nullcontext() if last else no_sync(model):
            model(batch).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        if last:
            optimizer.step()
            optimizer.zero_grad()
""",
        outcome=Outcome.REVIEW,
        support=("no_sync",),
    ),
    Example(
        title="dropped at the beginning and clipped at the end",
        before="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer, every):
    model = FSDP(net)
    for index, batch in enumerate(batches):
        if index % every == 0:
            optimizer.zero_grad()
        last = (index + 1) % every == 0
        with nullcontext() if last else model.no_sync():
            model(batch).sum().backward()
        if last:
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
""",
        after="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer, every):
    model = fully_shard(net)
    for index, batch in enumerate(batches):
        if index % every == 0:
            optimizer.zero_grad()
        last = (index + 1) % every == 0
        with nullcontext() if last else no_sync(model):
            model(batch).sum().backward()
        if last:
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
""",
        support=("no_sync",),
    ),
    Example(
        title="two losses of one step",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, batches, optimizer):
    model = FSDP(net)
    for first, second in batches:
        optimizer.zero_grad()
        with model.no_sync():
            model(first).sum().backward()
        model(second).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import no_sync


def train(net, batches, optimizer):
    model = fully_shard(net)
    for first, second in batches:
        optimizer.zero_grad()
        with no_sync(model):
            model(first).sum().backward()
        model(second).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
""",
        support=("no_sync",),
    ),
    Example(
        title="accumulated in another dtype, under a strategy that is chosen at run time",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def accumulate(net, batches, optimizer, strategy):
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(net, sharding_strategy=strategy, mixed_precision=half)
    for first, second in batches:
        with model.no_sync():
            model(first).sum().backward()
        loss = model(second).sum()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        after="""\
from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from fsdp2_support import no_sync, sharding_kwargs


def accumulate(net, batches, optimizer, strategy):
    half = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    model = fully_shard(
        net, mp_policy=replace(half, cast_forward_inputs=True), **sharding_kwargs(strategy)
    )
    for first, second in batches:
        # TODO(fsdp-migrate FSDP402): If the strategy is SHARD_GRAD_OP, pass keep_unsharded=True here, or parameters are gathered again for every micro-batch. Unsynchronised gradients are now accumulated in reduce_dtype, which is more precise than FSDP1's param_dtype. zero_grad() no longer drops gradients that wait for their reduction: where a step is given up below, they go into the next one.
        with no_sync(model):
            model(first).sum().backward()
        loss = model(second).sum()
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
        outcome=Outcome.REVIEW,
        support=(
            "no_sync",
            "sharding_kwargs",
        ),
    ),
]

KEEP = [
    Keep(
        title="accumulated in another dtype, with FSDP2",
        source="""\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def accumulate(net, batches):
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(net, mp_policy=half)
    model.set_requires_gradient_sync(False)
    for batch in batches:
        model(batch).sum().backward()
""",
    ),
    Keep(
        title="dropped before every micro-batch, with DDP",
        source="""\
from torch.nn.parallel import DistributedDataParallel


def train(net, batches, optimizer, every):
    model = DistributedDataParallel(net)
    for index, batch in enumerate(batches):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch).sum().backward()
        if index % every == 0:
            optimizer.step()
""",
    ),
    Keep(
        title="clipped between micro-batches, with accelerate",
        source="""\
for index, batch in enumerate(batches):
    with accelerator.no_sync(model):
        accelerator.backward(model(batch))
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    if index % 4 == 3:
        optimizer.step()
""",
    ),
    Keep(
        title="clipped between micro-batches, with FSDP2",
        source="""\
for index, batch in enumerate(batches):
    model.set_requires_gradient_sync(index % 4 == 3)
    model(batch).sum().backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    if index % 4 == 3:
        optimizer.step()
""",
    ),
    Keep(
        title="gradients without FSDP",
        source="""\
for batch in batches:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
""",
    ),
    Keep(
        title="a context that is no model's",
        source="""\
with lock.no_sync():
    queue.clear()
""",
    ),
    Keep(
        title="a step that is given up, with DDP",
        source="""\
from torch.nn.parallel import DistributedDataParallel


def train(net, batches, optimizer):
    model = DistributedDataParallel(net)
    for first, second in batches:
        with model.no_sync():
            model(first).sum().backward()
        loss = model(second).sum()
        if loss > 1000:
            optimizer.zero_grad()
            continue
        loss.backward()
""",
    ),
    Keep(
        title="a step that is given up, with FSDP2",
        source="""\
def train(model, batches, optimizer):
    for index, batch in enumerate(batches):
        model.set_requires_gradient_sync(index % 2 == 1)
        loss = model(batch).sum()
        if loss > 1000:
            optimizer.zero_grad()
            continue
        loss.backward()
""",
    ),
    Keep(
        title="DDP's",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model)
with model.no_sync():
    model(batch).backward()
""",
    ),
    Keep(
        title="accelerate's",
        source="""\
with accelerator.no_sync(model):
    model(batch).backward()
""",
    ),
    Keep(
        title="an own context manager",
        source="""\
with trainer.no_sync():
    trainer.backward(loss)
""",
    ),
    Keep(
        title="FSDP2's setter",
        source="""\
model.set_requires_gradient_sync(False)
""",
    ),
    Keep(
        title="a method of that name",
        source="""\
with bucket.no_sync():
    bucket.upload("model.pt")
""",
    ),
]

DROPPED = (
    "zero_grad() no longer drops gradients that wait for their reduction: where it comes between "
    "micro-batches, they go into the step"
)
UNSEEN = (
    "gradients that wait for their reduction are not in p.grad: what reads or clips gradients "
    "between micro-batches passes over them, do it before the step"
)


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    assert isinstance(site.node, ast.expr)
    models = study.models(site.receiver, site.module).constructors
    keeps = {strategy.of(c, study) in strategy.RESHARD_NEVER for c in models}
    if len(keeps) > 1:
        return study.left(
            site,
            RULE.code,
            "models of different sharding strategies meet here",
            "call set_requires_gradient_sync on each",
            models=models,
        )
    proposal = study.proposal()
    name = proposal.support(site.module, "no_sync", site.node)
    keep = ", keep_unsharded=True" if keeps == {True} else ""
    if isinstance(site.node, ast.Call):
        new = code("{f}({m}{k})", f=name, m=site.receiver, k=keep)
    else:
        partial = proposal.name(site.module, "functools", "partial", site.node)
        new = code("{p}({f}, {m}{k})", p=partial, f=name, m=site.receiver, k=keep)
    proposal.replace(site.module, site.node, new)
    reviews = []
    if any(strategy.of(c, study) is None for c in models):
        reviews.append(
            "if the strategy is SHARD_GRAD_OP, pass keep_unsharded=True here, or parameters are "
            "gathered again for every micro-batch"
        )
    if any(_accumulates_wider(c, study) for c in models):
        reviews.append(
            "unsynchronised gradients are now accumulated in reduce_dtype, which is more "
            "precise than FSDP1's param_dtype"
        )
    if any(map(_gives_up, ast.walk(enclosing_function(site.module, site.node)))):
        reviews.append(
            "zero_grad() no longer drops gradients that wait for their reduction: where a step is "
            "given up below, they go into the next one"
        )
    if between := _between(site):
        reviews.append(between)
    review = sentences(*reviews) if len(reviews) > 1 else "".join(reviews)
    return study.rewritten(
        site, RULE.code, "no_sync(model)", proposal, models=models, review=review
    )


def _gives_up(node: ast.AST) -> bool:
    """Whether a branch drops gradients and leaves, with neither a backward nor a step in it."""
    if not isinstance(node, ast.If):
        return False
    for block in (node.body, node.orelse):
        if not block or not isinstance(block[-1], (ast.Continue, ast.Break, ast.Return)):
            continue
        called = {
            n.func.attr
            for statement in block
            for n in ast.walk(statement)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        }
        if "zero_grad" in called and not called & {"step", "backward"}:
            return True
    return False


def _between(site: Site) -> str:
    """What to review where gradients are dropped or read before the step they add up to."""
    blocks = list(_blocks(site))
    for block, first in blocks:
        for statement in block[first:]:
            called = _called(statement)
            if "step" in called:
                break
            if "zero_grad" in called and isinstance(statement, ast.Expr):
                return DROPPED
    block, _ = blocks[-1]
    if not any(isinstance(s, ast.If) and "step" in _called(s) for s in block):
        return ""
    flat = [s for s in block if not isinstance(s, (ast.If, ast.For, ast.While))]
    if any("step" in _called(s) for s in flat if isinstance(s, ast.Expr)):
        return ""
    for statement in flat:
        if "zero_grad" in _called(statement):
            return DROPPED
        read = [n for n in ast.walk(statement) if isinstance(n, ast.Attribute)]
        if any(n.attr == "grad" and n.lineno > site.node.lineno for n in read):
            return UNSEEN
        if _called(statement) & {"clip_grad_norm_", "clip_grad_value_"}:
            return UNSEEN
    return ""


def _blocks(site: Site) -> Iterator[tuple[list[ast.stmt], int]]:
    """The statement lists around a site up to its loop, with where it goes on behind the site."""
    child: ast.AST = site.statement
    for parent in site.module.table.ancestors(child):
        if isinstance(child, ast.stmt):
            block = block_of(parent, child) or [child]
            yield block, block.index(child) + 1
        if isinstance(parent, (ast.For, ast.While, *FUNCTIONS)):
            return
        child = parent


def _called(statement: ast.AST) -> set[str]:
    """The names of the methods and functions that a statement calls."""
    return {
        n.func.attr if isinstance(n.func, ast.Attribute) else getattr(n.func, "id", "")
        for n in ast.walk(statement)
        if isinstance(n, ast.Call)
    }


def _accumulates_wider(constructor: Constructor, study: Study) -> bool:
    node = constructor.arguments.get("mixed_precision")
    if node is None:
        return constructor.is_open
    try:
        found, _ = precision.read(node, constructor.module, study)
    except precision.Unreadable:
        return True
    return any(
        each.spelled("reduce_dtype")
        and each.spelled("param_dtype")
        and each.spelled("reduce_dtype") != each.spelled("param_dtype")
        for each in found
    )
