"""Test for the class of a module with `isinstance`."""

import ast

from fsdp_migrate.analysis.values import Display, Value
from fsdp_migrate.families.modules import (
    class_texts,
    class_values,
    exact_classes,
    wrapper_names,
    wrappers_counted,
)
from fsdp_migrate.families.modules.inside_wrappers import said_of_question
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.fsdp1.api import FSDP, PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.kinds import of_kind

RULE = Rule(
    code="FSDP413",
    name="exact_class",
    handles=(
        "exact class",
        "class name",
        "class name of a wrapper",
        "bases of a class",
        "class as a key",
        "class handed on",
        "name of the wrapper's class",
        "part of a class name",
        "text of a model",
    ),
    finders=(
        Finder(150, exact_classes.find_exact_class_tests),
        Finder(160, exact_classes.find_class_names),
        Finder(165, exact_classes.find_class_bases),
        Finder(170, class_values.find_class_keys),
        Finder(172, class_values.find_classes_handed_on),
        Finder(174, exact_classes.find_parts_of_names),
        Finder(175, wrapper_names.find_wrapper_names),
        Finder(176, wrapper_names.find_names_of_units),
        Finder(179, wrappers_counted.find_texts),
        Finder(179, wrappers_counted.find_names_in_hooks),
    ),
)


PREFIX = "FSDP"
OTHER_NAME = (
    "this was the name of FSDP1's wrapper, now it is that of the model's own class behind FSDP: "
    "files and entries that are called by it have other names"
)
OTHER_TEXT = (
    "the text of a sharded model has no wrappers any more, and FSDP before the names of sharded "
    "classes: what is found by it, or compared with it, is another"
)
NO_WRAPPER = (
    "no class of an FSDP2 model has this name: a sharded module is called after its own class, "
    "which isinstance(module, FSDPModule) knows it by"
)
OWN_CLASS = (
    "a sharded module has a class of its own, derived from FSDPModule and the class it had, which "
    "stands among the bases here now"
)
TRUE_NOW = (
    "the name of FSDP1's wrapper has no such part: this was false of every sharded module, and is "
    "true of each now"
)
HANDED_ON = (
    "a sharded module has a class of its own here, derived from FSDPModule and the class it had"
)
# Torch derives the output layer of its attention from Linear.
DERIVED_LINEAR = ("MultiheadAttention", "Transformer")


def decide(site: Site, study: Study) -> Decision:
    if site.construct == exact_classes.NAMED:
        return _name(site, study)
    concerned = _concerned(site, study)
    if site.construct == wrapper_names.CONSTRUCT:
        return study.rewritten(site, RULE.code, "kept", models=concerned, review=NO_WRAPPER)
    if site.construct == exact_classes.OF_WRAPPER:
        message = "kept, with another name"
        return study.rewritten(site, RULE.code, message, models=concerned, review=OTHER_NAME)
    if site.construct == wrappers_counted.TEXT:
        return study.rewritten(site, RULE.code, "kept", models=concerned, review=OTHER_TEXT)
    if site.construct == exact_classes.DERIVED:
        message = "kept, with other classes"
        return study.rewritten(site, RULE.code, message, models=concerned, review=OWN_CLASS)
    if site.construct == class_values.HANDED_ON:
        message = "kept, with another class"
        return study.rewritten(site, RULE.code, message, models=concerned, review=HANDED_ON)
    if site.construct == class_values.KEY:
        return _left(site, concerned, study, "something is looked up by the class of a module")
    if site.construct == exact_classes.PART:
        return _part_of_name(site, concerned, study)
    compared = of_kind(site.node, ast.Compare)
    test = exact_classes.read_test(compared, site.module)
    if exact_classes.names_wrapper(test):
        return _wrapper(site, test, concerned, study)
    proposal = study.proposal()
    if test.by_name:
        if _asks_for_prefix(test):
            return _left(site, concerned, study, "the class is asked for by a name like FSDP2's")
        new = code('{k}.removeprefix("{p}")', k=test.kind, p=PREFIX)
        proposal.replace(site.module, test.kind, new)
        return study.rewritten(
            site, RULE.code, "compared without the prefix", proposal, models=concerned
        )
    wanted, review = _wanted(test, site, concerned, study)
    negation = "not " if test.is_negated else ""
    new = code("{n}isinstance({m}, {c})", n=negation, m=test.subject, c=wanted)
    if negation and isinstance(site.module.table.parents[compared], ast.Compare):
        return _left(site, concerned, study, "the test is part of another comparison")
    proposal.replace(site.module, compared, new)
    return study.rewritten(site, RULE.code, "isinstance", proposal, models=concerned, review=review)


def _concerned(site: Site, study: Study) -> frozenset[Constructor]:
    found: frozenset[Constructor] = frozenset()
    if site.receiver is not None:
        found = study.models(site.receiver, site.module).constructors
    return found or study.every_constructor


def _name(site: Site, study: Study) -> Decision:
    """The name of the class as it was before the module was sharded."""
    found = _concerned(site, study)
    proposal = study.proposal()
    message = "without the prefix"
    name = site.expression
    proposal.replace(site.module, name, code('{k}.removeprefix("{p}")', k=name, p=PREFIX))
    return study.rewritten(site, RULE.code, message, proposal, models=found)


def _wrapper(
    site: Site, test: exact_classes.Test, models: frozenset[Constructor], study: Study
) -> Decision:
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    negation = "not " if test.is_negated else ""
    new = code("{n}isinstance({m}, {c})", n=negation, m=test.subject, c=name)
    if test.is_membership:
        joined = "and" if test.is_negated else "or"
        new = code("{t} {j} {n}", t=_of_others(test), j=joined, n=new)
    proposal.replace(site.module, site.expression, new)
    review = said_of_question(test.subject, study, site.module)
    return study.rewritten(site, RULE.code, "isinstance", proposal, models=models, review=review)


def _of_others(test: exact_classes.Test) -> Code:
    """The test for the names that are not FSDP1's wrapper's."""
    names = test.other.elts if isinstance(test.other, (ast.Tuple, ast.List, ast.Set)) else []
    others = [e for e in names if getattr(e, "value", None) != FSDP]
    if not others:
        return code("{t}", t=test.node)
    if len(others) == 1:
        sign = "!=" if test.is_negated else "=="
        return code("{k} {s} {o}", k=test.kind, s=sign, o=others[0])
    within = "not in" if test.is_negated else "in"
    return code(
        "{k} {w} ({o})", k=test.kind, w=within, o=join(", ", [code("{e}", e=e) for e in others])
    )


def _part_of_name(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    test = class_texts.read_part(site.expression, study, site.module)
    if test.is_true_now:
        message = "kept, with another answer"
        return study.rewritten(site, RULE.code, message, models=models, review=TRUE_NOW)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.node)
    new = code("isinstance({m}, {c})", m=test.subject, c=name)
    if test.is_negated:
        new = code("not {n}", n=new)
    if not _is_alone(test, study):
        joined = "and" if test.is_negated else "or"
        new = code("{t} {j} {n}", t=test.node, j=joined, n=new)
    proposal.replace(site.module, site.expression, new)
    review = said_of_question(test.subject, study, site.module)
    return study.rewritten(site, RULE.code, "isinstance", proposal, models=models, review=review)


def _is_alone(test: class_texts.PartTest, study: Study) -> bool:
    """Whether FSDP1's wrapper is the only class of the program that a test can be true of."""
    return test.of_wrapper_alone and not study.project.mentions(*class_texts.OTHERS_OF_THE_NAME)


def _left(site: Site, models: frozenset[Constructor], study: Study, reason: str) -> Decision:
    return study.left(
        site,
        RULE.code,
        f"{reason}, and sharded modules have a class of their own",
        "test with isinstance",
        models=models,
        quiet=True,
    )


def _asks_for_prefix(test: exact_classes.Test) -> bool:
    return any(
        isinstance(node, ast.Constant) and str(node.value).startswith(PREFIX)
        for node in ast.walk(test.other)
    )


def _wanted(
    test: exact_classes.Test, site: Site, concerned: frozenset[Constructor], study: Study
) -> tuple[Code, str]:
    """The class or classes as ``isinstance`` takes them, and what may differ."""
    parts, wanted = [test.other], code("{c}", c=test.other)
    if isinstance(test.other, (ast.Tuple, ast.List, ast.Set)):
        parts = test.other.elts
        together = join(", ", [code("{e}", e=e) for e in parts])
        wanted = code("({c})", c=together) if len(parts) > 1 else together
    elif test.is_membership:
        values = study.values(test.other, site.module)
        parts = [e for v in values for e in _elements(v)] or parts
        if any(not isinstance(v.node, ast.Tuple) for v in values):
            wanted = code("tuple({c})", c=test.other)
    subclasses: list[str] = []
    for part in parts:
        known = exact_classes.known_subclasses(part, study, site.module)
        if known is None:
            return wanted, "the test is now true for subclasses as well"
        subclasses += known
        if "torch.nn.Linear" in study.external(part, site.module) and any(
            model_contents.may_contain(c.wrapped, c.module, layer, study)
            for c in concerned
            if c.has_module
            for layer in DERIVED_LINEAR
        ):
            subclasses.append("the output layer of torch's attention")
    if not subclasses:
        return wanted, ""
    names = " and ".join(dict.fromkeys(subclasses))
    return wanted, f"the test is now true for subclasses as well, here for {names}"


def _elements(value: Value) -> list[ast.expr]:
    node = value.node if isinstance(value, Display) else None
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else []
