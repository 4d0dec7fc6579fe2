"""Accumulate gradients with `set_requires_gradient_sync`."""

import ast
from collections.abc import Iterator, Set

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.training_loop import unsynced_reads
from fsdp_migrate.families.training_loop.last_micro_batch import LastMicroBatch, last_micro_batch
from fsdp_migrate.families.training_loop.unsynced_reads import called_in
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.strategies_met import strategies_met
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.forms import Form
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

RULE = Rule(code="FSDP402", name="no_sync", handles=("FullyShardedDataParallel.no_sync",))

CONTEXT = Form("a context manager")
# Where gradients are dropped or read between micro-batches, for more communication.
REDUCED = Form("gradients that are reduced after every micro-batch", reduces_more=True)
DROPPED = (
    "zero_grad() no longer drops gradients that wait for their reduction: where it comes between "
    "micro-batches, they go into the step"
)
UNSEEN = (
    "gradients that wait for their reduction are not in p.grad: what reads or clips gradients "
    "between micro-batches passes over them, do it before the step"
)
GATHERED = (
    "with SHARD_GRAD_OP, FSDP1 kept parameters gathered between micro-batches: to keep that, call "
    "set_reshard_after_backward with the flag that set_requires_gradient_sync gets"
)

KEPT = (
    "zero_grad() no longer drops gradients that wait for their reduction: {where}, they go into "
    "the next one"
)


def decide(site: Site, study: Study) -> Decision:
    found = study.models(site.subject, site.module)
    models = found.constructors
    met = [strategies_met(site.subject, site.module, c, study) for c in models]
    keeps = set(map(_keeps, met))
    if len(keeps) > 1:
        return study.left(
            site,
            RULE.code,
            "models of different sharding strategies meet here",
            "call set_requires_gradient_sync on each",
            models=models,
        )
    proposal = study.proposal()
    is_sure = found.certain and all(strategies.strategies_of(c, study) for c in models)
    only_fsdp2 = is_sure or study.tracer.told(site.subject, site.module) is True  # by a test
    alone = is_sure and not _may_train_elsewhere(site, models, study)
    chosen = last_micro_batch(site) if alone else None
    if chosen is not None and not _is_fsdp2_throughout(chosen.around, site, study):
        chosen = None
    form = study.take(
        site, Form("set_requires_gradient_sync", enough=chosen is not None), CONTEXT, REDUCED
    )
    if form == REDUCED.name:
        _reduce_every_time(site, proposal)
        return study.rewritten(site, RULE.code, REDUCED.name, proposal, models=models)
    if chosen is not None and form != CONTEXT.name:
        message = "set_requires_gradient_sync"
        _set(chosen, site, proposal, unsharded=keeps == {True})
    else:
        message = _context(site, proposal, unsharded=keeps == {True}, only_fsdp2=only_fsdp2)
    reviews = []
    may_keep = keeps == {False} and any(each & strategies.RESHARD_NEVER for each in met)
    if may_keep or (not all(met) and strategies.may_reshard_never(study)):
        reviews.append(GATHERED)
    if any(_accumulates_wider(c, study) for c in models):
        message += ", which accumulates in reduce_dtype"
    around = enclosing_function(site.module, site.expression)
    if any(map(_gives_up, ast.walk(around))):
        reviews.append(KEPT.format(where="where a step is given up below"))
    elif _drops_the_rest(site, study):
        reviews.append(KEPT.format(where="where the loop ends inside of an accumulation"))
    if between := _between(site, study):
        reviews.append(between)
    review = sentences(*reviews) if len(reviews) > 1 else "".join(reviews)
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _may_train_elsewhere(site: Site, models: frozenset[Constructor], study: Study) -> bool:
    """Whether another file may call backward on the same models, who then wait for a reduction."""
    function = enclosing_function(site.module, site.expression)
    if all(
        c.module is site.module and enclosing_function(c.module, c.call) is function for c in models
    ):
        return False
    mentioning = study.project.modules_mentioning("backward")
    return any("backward" in m.table.methods for m in mentioning if m is not site.module)


def _is_fsdp2_throughout(around: ast.With, site: Site, study: Study) -> bool:
    """Whether no other model gets to a statement, whatever is asked in front of the site."""
    path = access_path(site.subject)
    every = (n for n in ast.walk(around) if isinstance(n, ast.expr) and n is not site.subject)
    named = [node for node in every if access_path(node) == path]
    return all(study.models(node, site.module).certain for node in named)


def _does_nothing(context: ast.expr) -> bool:
    return (
        isinstance(context, ast.Call)
        and not context.args
        and last_name(context.func) == "nullcontext"
    )


def _set(chosen: LastMicroBatch, site: Site, proposal: Proposal, *, unsharded: bool) -> None:
    """Say in front of the micro-batch whether its gradients are reduced."""
    setters = ["set_requires_gradient_sync", *(["set_reshard_after_backward"] if unsharded else [])]
    last, lines = chosen.last, []
    statement = chosen.named or chosen.around
    if unsharded and not last.preview().isidentifier():
        name = proposal.fresh(site.module, statement, "is_last")
        lines, last = [code("{n} = {c}", n=name, c=last)], code(name)
    lines += [code(f"{{m}}.{s}({{last}})", m=site.subject, last=last) for s in setters]
    if chosen.named is None:
        proposal.insert_before(site.module, chosen.around, *lines)
    else:
        proposal.replace_statement(site.module, chosen.named, *lines)
    proposal.unwrap(site.module, chosen.around, 0)


def _context(site: Site, proposal: Proposal, *, unsharded: bool, only_fsdp2: bool) -> str:
    """Enter a context manager of the project's; its name."""
    function = f"no_sync{'' if only_fsdp2 else '_of_any'}{'_unsharded' if unsharded else ''}"
    name = proposal.support(site.module, function, site.node)
    if isinstance(site.node, ast.Call):
        new = code("{f}({m})", f=name, m=site.subject)
    else:
        partial = proposal.name(site.module, "functools", "partial", site.node)
        new = code("{p}({f}, {m})", p=partial, f=name, m=site.subject)
    proposal.replace(site.module, site.expression, new)
    return f"{function}(model)"


def _reduce_every_time(site: Site, proposal: Proposal) -> None:
    """Take the context away, or put one in its place that does nothing."""
    parents = site.module.table.parents
    item = parents[site.node]
    if isinstance(item, ast.IfExp) and not any(
        isinstance(n, ast.Call) for n in ast.walk(item.test)
    ):
        other = item.orelse if item.body is site.node else item.body
        item = parents[item] if _does_nothing(other) else item
    around = parents[item]
    if isinstance(around, ast.With) and isinstance(item, ast.withitem) and not item.optional_vars:
        proposal.unwrap(site.module, around, around.items.index(item))
        return
    name = proposal.name(site.module, "contextlib", "nullcontext", site.node)
    new = code("{n}()", n=name) if isinstance(site.node, ast.Call) else code(name)
    proposal.replace(site.module, site.expression, new)


def _gives_up(node: ast.AST) -> bool:
    """Whether a branch drops gradients and leaves, with neither a backward nor a step in it."""
    if not isinstance(node, ast.If):
        return False
    for block in (node.body, node.orelse):
        if not block or not isinstance(block[-1], (ast.Continue, ast.Break, ast.Return)):
            continue
        called = set().union(*map(_trains, block))
        if "zero_grad" in called and not called & {"step", "backward"}:
            return True
    return False


def _drops_the_rest(site: Site, study: Study) -> bool:
    """Whether the gradients are dropped that the end of a loop leaves: behind it, or above what
    comes next of it, at its own head every few batches or at that of the loop around."""
    table = site.module.table
    inside = [site.statement, *table.ancestors(site.statement)]
    loops = [each for each in inside if isinstance(each, (ast.For, ast.While))]
    if not loops:
        return False
    above, behind = _around(loops[0], table.parents[loops[0]])
    if next((found for found in map(_trains, behind) if found), set()) == {"zero_grad"}:
        return True
    if not _may_end_inside(loops[0], site) or not (len(loops) > 1 or _is_called_again(site, study)):
        return False
    heads: list[ast.stmt] = [
        each for each in loops[0].body if isinstance(each, ast.If) and _counts(each.test)
    ]
    if len(loops) > 1 and above and above[0] in loops[1].body:
        heads += above
    return any(_trains(each) == {"zero_grad"} for each in heads if each not in inside)


def _is_called_again(site: Site, study: Study) -> bool:
    """Whether a loop calls the function of a site."""
    function = enclosing_function(site.module, site.expression)
    if not isinstance(function, FUNCTIONS):
        return False
    callers = study.tracer.callers(function, site.module)
    return any(
        isinstance(parent, (ast.For, ast.While))
        for caller in callers
        for parent in caller.module.table.ancestors(caller.call)
    )


def _around(statement: ast.stmt, parent: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of its block above one, and below."""
    block = block_of(parent, statement)
    place = block.index(statement)
    return block[:place], block[place + 1 :]


def _may_end_inside(loop: ast.For | ast.While, site: Site) -> bool:
    """Whether a step comes every few batches, and by none of its conditions with the last one."""
    asked = [
        condition
        for node in ast.walk(loop)
        if (condition := _condition_of_step(node, site)) is not None
    ]
    return any(map(_counts, asked)) and not any(map(_knows_the_last, asked))


def _condition_of_step(node: ast.AST, site: Site) -> ast.expr | None:
    """What a part of a loop asks before a step or a reduction: no condition of a line in a log."""
    match node:
        case ast.If(test=test):
            inside = node in site.module.table.ancestors(site.node)
            return test if inside or "step" in _trains(node) else None
        case ast.IfExp(test=test):
            return test if node in site.module.table.ancestors(site.node) else None
        case ast.Assign(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp() as flag):
            return flag
    return None


def _knows_the_last(condition: ast.expr) -> bool:
    """``index + 1 == len(batches)``, or one thing or another."""
    return any(
        (isinstance(node, ast.Call) and last_name(node.func) == "len")
        or (isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or))
        for node in ast.walk(condition)
    )


def _counts(node: ast.AST) -> bool:
    """Whether something has a remainder in it: ``step % 4``, and not ``"%d" % step``."""
    return any(
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) and not _is_text(n.left)
        for n in ast.walk(node)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def _trains(statement: ast.stmt) -> set[str]:
    """What a statement does to gradients: a scheduler's step is none of it."""
    return {
        call.func.attr
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"zero_grad", "step", "backward"}
        and "sched" not in last_name(call.func.value).lower()
    }


def _between(site: Site, study: Study) -> str:
    """What to review where gradients are dropped or read before the step that they add up to."""
    blocks = list(_blocks(site))
    for block, first in blocks:
        for statement in block[first:]:
            called = called_in(statement)
            if "step" in called:
                break
            if "zero_grad" in called and isinstance(statement, ast.Expr):
                return DROPPED
    if unsynced_reads.are_read(site, blocks, study):
        return UNSEEN
    block, _ = blocks[-1]
    if not any(isinstance(s, ast.If) and "step" in called_in(s) for s in block):
        return ""
    flat = [s for s in block if not isinstance(s, (ast.If, ast.For, ast.While))]
    if any("step" in called_in(s) for s in flat if isinstance(s, ast.Expr)):
        return ""
    for statement in flat:
        if "zero_grad" in called_in(statement):
            return DROPPED
        read = [n for n in ast.walk(statement) if isinstance(n, ast.Attribute)]
        if any(n.attr == "grad" and n.lineno > site.node.lineno for n in read):
            return UNSEEN
        if called_in(statement) & {"clip_grad_norm_", "clip_grad_value_"}:
            return UNSEEN
    return ""


def _blocks(site: Site) -> Iterator[tuple[list[ast.stmt], int]]:
    """The statement lists around a site up to its loop, with where it goes on behind the site."""
    child: ast.AST = site.statement
    for parent in site.module.table.ancestors(child):
        if isinstance(child, ast.stmt):
            block = block_of(parent, child)
            yield block, block.index(child) + 1
        if isinstance(parent, (ast.For, ast.While, *FUNCTIONS)):
            return
        child = parent


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


def _keeps(chosen: Set[str]) -> bool:
    """Whether a model surely keeps its parameters gathered between micro-batches.

    Under FULL_SHARD that would take the memory that it is there to save.
    """
    return bool(chosen) and chosen <= strategies.RESHARD_NEVER
