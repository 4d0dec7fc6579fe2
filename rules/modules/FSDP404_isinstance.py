"""Recognise sharded models as `FSDPModule`."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import classes
from fsdp_migrate.fsdp1 import references, unwrapping
from fsdp_migrate.fsdp1.api import FSDP, PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import branches, string_references
from fsdp_migrate.planning.branches import VERSION, Branch
from fsdp_migrate.planning.context import Study, sentences
from fsdp_migrate.planning.edits import Proposal, code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax import string_annotations, type_expressions
from fsdp_migrate.syntax.trees import FUNCTIONS


def _attribute_checks(study: Study, module: Module) -> Iterator[Site]:
    return references.attribute_checks(study.tracer, module)


RULE = Rule(
    code="FSDP404",
    name="isinstance",
    handles=(
        "isinstance(FullyShardedDataParallel)",
        "annotation(FullyShardedDataParallel)",
        "compared(FullyShardedDataParallel)",
        "tested(FullyShardedDataParallel)",
        "listed(FullyShardedDataParallel)",
        "hasattr(FullyShardedDataParallel)",
        "version",
        "annotation(MixedPrecision)",
        "annotation(CPUOffload)",
        "quoted annotation",
    ),
    finders=(Finder(110, _attribute_checks),),
)


NEW_NAMES = {FSDP: "FSDPModule", "MixedPrecision": "MixedPrecisionPolicy"}
TYPES = {
    **{old: (PACKAGE, new) for old, new in NEW_NAMES.items()},
    "CPUOffload": (PACKAGE, "OffloadPolicy"),
    "ShardedGradScaler": ("torch.amp", "GradScaler"),
}


def decide(site: Site, study: Study) -> Decision:
    kind, _, rest = site.construct.partition("(")
    if kind == string_references.QUOTED:
        return _quoted(site, study)
    if kind == VERSION:
        return _version(site, study)
    if kind == "tested":
        return study.left(
            site,
            RULE.code,
            "this asks whether FSDP1 could be imported, and migrated code needs fully_shard",
            "set fully_shard to None where its import fails, and ask for that",
        )
    if kind == "compared":
        return _compared(site, study)
    if kind == "hasattr":
        return _has_method(site, study)
    old = rest.rstrip(")")
    models = frozenset(study.constructors.values())
    if kind == "isinstance" and isinstance(site.node, ast.Call):
        models = study.models_of_static(site.node.args[0], site.module).constructors
    if not models:
        return study.left(
            site,
            RULE.code,
            study.no_models,
            "give the path that wraps the model as well",
        )
    stands_in = _placeholder(site, study)
    if stands_in:
        return study.left(
            site,
            RULE.code,
            f"where torch's {old} cannot be imported, {stands_in} stands in for it, and nothing "
            "for the new name",
            f"use {NEW_NAMES.get(old, 'OffloadPolicy')} here, and give it such a stand-in as well",
            models=models,
            quiet=True,
        )
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is not None:
        return _branch(branch, site, study)
    if kind == "isinstance" and old == FSDP and branches.comes_first(site, study.project):
        return study.left(
            site,
            RULE.code,
            "what is for FSDP2 models comes after this, and would not be reached if they are asked "
            "for here",
            "ask for FSDPModule first, by itself, and run again",
            models=models,
            quiet=True,
        )
    if kind == "isinstance" and old == FSDP:
        inner = _wrappers_passed_over(site, models, study)
        if inner is not None:
            return inner
        taken_off = _taken_off(site, models, study)
        if taken_off is not None:
            return taken_off
        if unwrapping.is_condition_of_loop(site.node, site.module):
            return study.left(
                site,
                RULE.code,
                "an FSDP2 model has no inner module, and a loop that takes wrappers off would not "
                "end",
                "take off the other wrappers alone",
                models=models,
                quiet=True,
            )
    if kind == "annotation" and _is_checked_elsewhere(site, study):
        return study.left(
            site,
            RULE.code,
            "models are told apart by this type in other files, and an FSDP2 model has no inner "
            "module",
            "use FSDPModule in place of FSDP where nothing is taken off the models",
            models=models,
            quiet=True,
        )
    if kind == "listed":
        settled = _listed(site, models, study)
        if settled is not None:
            return settled
    new = NEW_NAMES.get(old, "OffloadPolicy")
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, new, site.reference)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    return study.rewritten(site, RULE.code, new, proposal, models=models)


def _placeholder(site: Site, study: Study) -> str:
    """What the old name is where torch's FSDP cannot be imported, if the code here works with it.

    ``isinstance(model, None)`` does not, while an annotation that is evaluated may be anything.
    """
    kind, table = site.construct.partition("(")[0], site.module.table
    if kind == "annotation" and table.postpones_annotations:
        return ""
    for binding in study.project.placeholders(site.reference, site.module):
        nothing = isinstance(binding.value, ast.Constant)
        if not (kind == "isinstance" and nothing):
            return reaching_bindings.in_words(binding)
    return ""


def _stops_there(holder: ast.AST, module: Module) -> bool:
    """Whether a function that goes down the tree by itself does not go into what was wrapped."""
    table = module.table
    around = list(table.ancestors(holder))
    function = next((p for p in around if isinstance(p, FUNCTIONS)), None)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    deeper = [
        call
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) == function.name
    ]
    if isinstance(holder, ast.If):  # if isinstance(m, FSDP): continue
        loop = table.parents[holder]
        later = {n for n in ast.walk(loop) if isinstance(n, ast.Call) and n.lineno > holder.lineno}
        return bool(deeper) and later.issuperset(deeper)
    branch = next((p for p in around if isinstance(p, (ast.stmt, ast.comprehension))), None)
    if not isinstance(branch, ast.If):
        return False
    inside = {node for statement in branch.body for node in ast.walk(statement)}
    return bool(deeper) and inside.issuperset(deeper)


def _wrappers_passed_over(
    site: Site, models: frozenset[Constructor], study: Study
) -> Decision | None:
    """``not isinstance(m, FSDP)`` of every module of a model: in FSDP1 the module in a wrapper came
    by as well, and was meant. What only passes over wrappers goes."""
    check, table = site.node, site.module.table
    assert isinstance(check, ast.Call)
    holder = table.parents[check]
    negated = isinstance(holder, ast.UnaryOp) and isinstance(holder.op, ast.Not)
    passes = (
        isinstance(holder, ast.If)
        and holder.test is check
        and not holder.orelse
        and isinstance(holder.body[0], ast.Continue)
    )
    asked = check.args[1]
    named = asked.elts if isinstance(asked, ast.Tuple) else [asked]
    if site.reference not in named:
        return None
    others = [e for e in named if e is not site.reference]
    if not (negated or passes):
        return None
    if not classes.is_visited(check.args[0], study, site.module):
        return None
    if _stops_there(holder, site.module):
        return None
    proposal = study.proposal()
    message = "gone: no module comes by as a wrapper and once more inside of it"
    around = table.parents[holder]
    if others:
        _ask_for(others, check, site, proposal)
    elif passes:
        assert isinstance(holder, ast.If)
        proposal.delete(site.module, holder)
        study.gone.add(holder)
    elif isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
        rest = [code("{v}", v=value) for value in around.values if value is not holder]
        proposal.replace(site.module, around, join(" and ", rest))
    else:
        return study.left(
            site,
            RULE.code,
            "this is about the modules inside of FSDP1's wrappers, and there are no wrappers now",
            "drop the test where it only kept wrappers out",
            models=models,
            quiet=True,
        )
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _ask_for(
    classes_left: Sequence[ast.expr], check: ast.Call, site: Site, proposal: Proposal
) -> None:
    """Ask an ``isinstance`` for some of its classes, without brackets around a single one."""
    asked = join(", ", [code("{o}", o=each) for each in classes_left])
    asked = asked if len(classes_left) == 1 else code("({a})", a=asked)
    proposal.replace(site.module, check, code("isinstance({m}, {a})", m=check.args[0], a=asked))


def _taken_off(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """``while isinstance(m, (FSDP, DDP)): m = m.module``: only the others are taken off."""
    check = site.node
    assert isinstance(check, ast.expr)
    holder = unwrapping.around(check, site.module)
    if holder is None:
        return None
    assert isinstance(check, ast.Call)
    others = unwrapping.others(check, site.reference)
    if not isinstance(holder, ast.While) and (
        not others or study.traced(check.args[0], site.module)
    ):
        return None
    proposal = study.proposal()
    if others:
        _ask_for(others, check, site, proposal)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
    else:
        assert isinstance(holder, ast.While)
        proposal.delete(site.module, holder)
        study.gone.add(holder)
        message = "an FSDP2 model has no inner module"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _listed(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """A class in a tuple for ``isinstance`` that FSDPModule cannot simply take the place of."""
    assert isinstance(site.reference, ast.expr)
    checks = unwrapping.listed_for(site.reference, site.module)
    takes_off = [check for check in checks if unwrapping.takes_off(check, site.module)]
    holder = unwrapping.classes_around(site.reference, site.module)
    is_tuple = isinstance(holder, ast.Tuple)
    elsewhere = _is_imported(site, study) if is_tuple else _is_checked_elsewhere(site, study)
    if not takes_off and not elsewhere:
        return None
    classes = holder.elts if isinstance(holder, ast.Tuple) else []
    others = [e for e in classes if e is not site.reference]
    statement = site.statement
    if (
        not others
        and takes_off == checks
        and not elsewhere
        and isinstance(statement, ast.AugAssign)
    ):
        proposal = study.proposal()
        proposal.delete(site.module, statement)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    if elsewhere or takes_off != checks or not others:
        why = "used in other files" if elsewhere else "also those of wrappers that are taken off"
        return study.left(
            site,
            RULE.code,
            f"these classes are {why}, and an FSDP2 model has no inner module",
            "use FSDPModule in place of FSDP where models are told apart by them",
            models=models,
            quiet=True,
        )
    assert holder is not None
    proposal = study.proposal()
    listed = join(", ", [code("{o}", o=other) for other in others])
    comma = "," if len(others) == 1 else ""
    proposal.replace(site.module, holder, code("({l}{c})", l=listed, c=comma))
    message = "kept for the other wrappers: an FSDP2 model has no inner module"
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _is_checked_elsewhere(site: Site, study: Study) -> bool:
    """Whether a type is an alias, and an ``isinstance`` of another file asks for it.

    An alias of the class alone is followed: that ``isinstance`` is looked at by itself.
    """
    if any(binding.value is site.reference for binding in study.project.aliases):
        return False
    match site.statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(
                module is not site.module
                and module.mentions(name)
                and type_expressions.is_checked(name, module.table)
                for module in study.project.modules
            )
    return False


def _is_imported(site: Site, study: Study) -> bool:
    """Whether another file names the tuple that a class stands in."""
    statement = site.statement
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    own = site.module.table.module
    if site.module.table.scope_of(site.node).module_scope() is not own:
        return False
    for module in study.project.modules:
        if module is not site.module and any(
            binding.name in names or binding.qualified.rpartition(".")[2] in names
            for binding in module.table.imports
        ):
            return True
        if any(a.attr in names for a in module.table.attributes):
            return True
    return False


def _has_method(site: Site, study: Study) -> Decision:
    """``hasattr(model, "no_sync")`` said that it is FSDP's: FSDP2 models have no such methods."""
    assert isinstance(site.node, ast.Call)
    assert site.receiver is not None
    found = study.models(site.receiver, site.module)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    new = code("isinstance({m}, {n})", m=ast.unparse(site.receiver), n=name)
    if not found.certain:
        new = code("({i} or {h})", i=new, h=ast.unparse(site.node))
    proposal.replace(site.module, site.node, new)
    models = found.constructors
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _quoted(site: Site, study: Study) -> Decision:
    """An annotation in quotes: the names in it are replaced where all of them can be."""
    assert isinstance(site.node, ast.Constant)
    models = frozenset(study.constructors.values())
    text = str(site.node.value)
    found = [
        each
        for annotation in string_annotations.in_annotations(site.module.table)
        if annotation.string is site.node
        for each in string_references.references(annotation, study, site.module)
    ]
    others = [old for node, old in found if old not in TYPES or _deeper(node, old)]
    if others or not models or not text.isascii() or "\n" in text:
        missing = others[0].removeprefix("private:") if others else ""
        reason = f"FSDP2 has no {missing}" if models and others else study.no_models
        return study.left(
            site,
            RULE.code,
            reason or "the annotation is not plain text",
            "name what the annotated code takes now",
        )
    proposal = study.proposal()
    for node, old in sorted(found, key=lambda item: -item[0].col_offset):
        package, new = TYPES[old]
        if isinstance(node, ast.Attribute) and package == PACKAGE:
            new = f"{ast.unparse(node.value)}.{new}"
        else:
            new = proposal.name(site.module, package, new, site.node)
        text = text[: node.col_offset] + new + text[node.end_col_offset :]
    quote = "'" if site.module.source.segment(site.node).endswith("'") else '"'
    proposal.replace(site.module, site.node, code("{t}", t=f"{quote}{text}{quote}"))
    return study.rewritten(site, RULE.code, text, proposal, models=models)


def _deeper(node: ast.expr, old: str) -> bool:
    """``torch.distributed.fsdp.api.MixedPrecision``: FSDP2's names are not in FSDP1's modules."""
    if TYPES[old][0] != PACKAGE:
        return False
    owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    return owner.startswith("torch.") and owner != PACKAGE


def _compared(site: Site, study: Study) -> Decision:
    """``type(model) == FSDP``: an FSDP2 model has a class of its own for each class it shards."""
    models = frozenset(study.constructors.values())
    node = site.node
    assert isinstance(node, ast.Compare)
    sides = [node.left, *node.comparators]
    other = next((s for s in sides if s is not site.reference), None)
    simple = len(sides) == 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
    asked = other.args[0] if isinstance(other, ast.Call) and len(other.args) == 1 else None
    function = other.func if isinstance(other, ast.Call) else None
    known = isinstance(function, ast.Name) and function.id == "type"
    if not simple or not known or asked is None or not models:
        return study.left(
            site,
            RULE.code,
            "classes are compared, and an FSDP2 model is of another class",
            "ask isinstance(model, FSDPModule)",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    no = "not " if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) else ""
    new = code("{no}isinstance({m}, {n})", no=no, m=asked, n=name)
    proposal.replace(site.module, node, new)
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _branch(branch: Branch, site: Site, study: Study) -> Decision:
    """Migrated models take the branch that the project has for FSDP2."""
    models = frozenset(study.constructors.values())
    proposal = study.proposal()
    if branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    taken = branch.taken or branch.head
    proposal.mark(site.module, taken.test, RULE.code, sentences(TAKES_OTHER))
    decision = study.rewritten(
        site, RULE.code, "the branch for FSDP2 is left", proposal, models=models
    )
    return replace(decision, outcome=Outcome.REVIEW, help=TAKES_OTHER)


def _version(site: Site, study: Study) -> Decision:
    """No model is of the version that the project has for FSDP1's."""
    models = frozenset(study.constructors.values())
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is None:  # it builds models
        return study.left(
            site,
            RULE.code,
            "models are wrapped where the model is asked for its version of FSDP",
            "wrap them elsewhere, and run again",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    if branch.rest:
        for statement in branch.rest:
            proposal.delete(site.module, statement)
    elif branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    return study.rewritten(
        site, RULE.code, "no model is of FSDP1's version any more", proposal, models=models
    )


TAKES_OTHER = "models that were FSDP1 take the branch for FSDP2 now: see that it does all they need"
