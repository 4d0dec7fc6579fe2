"""Recognise sharded models as `FSDPModule`."""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import fsdp2_attributes
from fsdp_migrate.families.modules.class_lists import decide_listed_class, is_checked_elsewhere
from fsdp_migrate.families.modules.class_patterns import decide_class_pattern
from fsdp_migrate.families.modules.fsdp2_branches import decide_branch, decide_version_test
from fsdp_migrate.families.modules.inside_wrappers import said_of_question
from fsdp_migrate.families.modules.isinstance_tests import decide_passed_over, decide_taken_off
from fsdp_migrate.families.modules.quoted_annotations import NEW_NAMES, decide_quoted_annotation
from fsdp_migrate.fsdp1 import model_attributes
from fsdp_migrate.fsdp1.api import FSDP, PACKAGE, is_fsdp2_class
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import branches, string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind


def _attribute_checks(study: Study, module: Module) -> Iterator[Site]:
    return model_attributes.attribute_checks(study.tracer, module)


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
        "case(FullyShardedDataParallel)",
        "version",
        "annotation(MixedPrecision)",
        "annotation(CPUOffload)",
        "quoted annotation",
        "question for FSDP2's methods",
    ),
    finders=(Finder(110, _attribute_checks), Finder(111, fsdp2_attributes.find_questions)),
)


def decide(site: Site, study: Study) -> Decision:
    kind, old = site.construct.kind, site.construct.name
    if site.construct == string_references.QUOTED:
        return decide_quoted_annotation(site, study)
    if site.construct == fsdp2_attributes.CONSTRUCT:
        return fsdp2_attributes.decide_question(site, study)
    if kind is ConstructKind.VERSION:
        return decide_version_test(site, study)
    if kind is ConstructKind.TESTED:
        return study.left(
            site,
            RULE.code,
            "this asks whether FSDP1 could be imported, and migrated code needs fully_shard",
            "set fully_shard to None where its import fails, and ask for that",
        )
    if kind is ConstructKind.COMPARED:
        return _compared(site, study)
    if kind is ConstructKind.HASATTR:
        return _has_method(site, study)
    if kind is ConstructKind.MATCHED:
        return decide_class_pattern(site, study)
    models = study.every_constructor
    if kind is ConstructKind.ISINSTANCE and isinstance(site.node, ast.Call):
        models = study.models_of_static(site.node.args[0], site.module).constructors
    if not models:
        return study.left(site, RULE.code, study.no_models, study.no_models_help)
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
        return decide_branch(branch, site, study)
    if (
        kind is ConstructKind.ISINSTANCE
        and old == FSDP
        and branches.comes_first(site, study.project)
    ):
        return study.left(
            site,
            RULE.code,
            "what is for FSDP2 models comes after this, and would not be reached if they are asked "
            "for here",
            "ask for FSDPModule first, by itself, and run again",
            models=models,
            quiet=True,
        )
    if kind is ConstructKind.ISINSTANCE and old == FSDP:
        inner = decide_passed_over(site, models, study)
        if inner is not None:
            return inner
        taken_off = decide_taken_off(site, models, study)
        if taken_off is not None:
            return taken_off
    if kind is ConstructKind.ANNOTATION and is_checked_elsewhere(site, study):
        return study.left(
            site,
            RULE.code,
            "models are told apart by this type in other files, and an FSDP2 model has no inner "
            "module",
            "use FSDPModule in place of FSDP where nothing is taken off the models",
            models=models,
            quiet=True,
        )
    if kind is ConstructKind.LISTED:
        settled = decide_listed_class(site, models, study)
        if settled is not None:
            return settled
    new = NEW_NAMES.get(old, "OffloadPolicy")
    proposal = study.proposal()
    union = _union_with_fsdp2s(site, study)
    if union is not None:
        proposal.replace(site.module, *union)
    else:
        name = proposal.name(site.module, PACKAGE, new, site.reference)
        proposal.replace(site.module, site.mention, code("{n}", n=name))
    review = ""
    if kind is ConstructKind.ISINSTANCE and isinstance(site.node, ast.Call):
        asked = site.node.args[0]
        review = said_of_question(asked, study, site.module) if old == FSDP else ""
    return study.rewritten(site, RULE.code, new, proposal, models=models, review=review)


def _union_with_fsdp2s(site: Site, study: Study) -> tuple[ast.expr, Code] | None:
    """What stands for a union of FSDP1's class and FSDP2's alone: ``FSDP | FSDPModule``."""
    parents = site.module.table.parents
    union: ast.expr
    match parents[site.mention]:
        case ast.BinOp(op=ast.BitOr(), left=one, right=other) as union:
            new = "{n}"
        case ast.Tuple(elts=[one, other]) as members:
            match parents[members]:
                case ast.Subscript(value=form) as union if last_name(form) == "Union":
                    new = "{n}"
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, _]) as union:
                    new = "isinstance({m}, {n})"
                case _:
                    return None  # ``tuple[FSDP, FSDPModule]``
        case ast.Tuple(elts=several) as members if _is_asked_for(members, site.module):
            others = [each for each in several if each is not site.mention]
            if not any(_is_fsdp2s(each, site, study) for each in others):
                return None
            return members, code("({o})", o=join(", ", [code("{o}", o=o) for o in others]))
        case _:
            return None
    beside = other if one is site.mention else one
    if not _is_fsdp2s(beside, site, study):
        return None
    asked = {"m": union.args[0]} if isinstance(union, ast.Call) else {}
    return union, code(new, n=beside, **asked)


def _is_asked_for(members: ast.Tuple, module: Module) -> bool:
    """``isinstance(m, (...))``."""
    match module.table.parents[members]:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
            return asked is members
    return False


def _is_fsdp2s(node: ast.expr, site: Site, study: Study) -> bool:
    names = study.external(node, site.module)
    return bool(names) and all(map(is_fsdp2_class, names))


def _placeholder(site: Site, study: Study) -> str:
    """What the old name is where torch's FSDP cannot be imported, if the code here works with it.

    ``isinstance(model, None)`` does not, while an annotation that is evaluated may be anything.
    """
    kind, table = site.construct.kind, site.module.table
    if kind is ConstructKind.ANNOTATION and table.postpones_annotations:
        return ""
    for binding in study.project.placeholders(site.reference, site.module):
        nothing = isinstance(binding.value, ast.Constant)
        if not (kind is ConstructKind.ISINSTANCE and nothing):
            return reaching_bindings.in_words(binding)
    return ""


def _has_method(site: Site, study: Study) -> Decision:
    """``hasattr(model, "no_sync")`` said that it is FSDP's: FSDP2 models have no such methods."""
    found = study.models(site.subject, site.module)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.call)
    new = code("isinstance({m}, {n})", m=ast.unparse(site.subject), n=name)
    if not found.certain:
        is_test = isinstance(site.module.table.parents[site.call], ast.If)
        form = "{i} or {h}" if is_test else "({i} or {h})"
        new = code(form, i=new, h=site.call)
    proposal.replace(site.module, site.call, new)
    models = found.constructors
    return study.rewritten(site, RULE.code, "isinstance FSDPModule", proposal, models=models)


def _compared(site: Site, study: Study) -> Decision:
    """``type(model) == FSDP``: an FSDP2 model has a class of its own for each class it shards."""
    models = study.every_constructor
    node = of_kind(site.node, ast.Compare)
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
