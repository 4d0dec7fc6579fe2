"""Strings with the parts that FSDP1 puts into names: ``"_fsdp_wrapped_module."``."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TypeGuard

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.names import key_prefixes, model_names, own_wrappers
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Cause, Decision
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import method_of, present

RULE = "FSDP406"


def decide_clean_tensor_name(site: Site, study: Study) -> Decision:
    """``clean_tensor_name`` of torch: of FSDP2's names it removes what checkpointing adds."""
    call = site.node
    models = study.every_constructor
    bound = bind_arguments(call, ("tensor_name",)) if isinstance(call, ast.Call) else None
    if not models or not bound:
        return study.left(
            site,
            RULE,
            "it belongs to FSDP1's private modules",
            "write it out: name.replace('_checkpoint_wrapped_module.', '')",
        )
    proposal = study.proposal()
    call = site.call
    new = code('{n}.replace("_checkpoint_wrapped_module.", "")', n=bound["tensor_name"])
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE, "names are clean", proposal, models=models)


def decide_prefix_string(site: Site, study: Study) -> Decision:
    models = study.every_constructor
    removal = key_prefixes.removal(site.string, site.module)
    own = study.cache(own_wrappers.hold_modules)
    if models and own:
        return _of_own_wrappers(site, study, removes=removal is not None)
    if removal is not None:
        return _removed(removal, site, study)
    asked = key_prefixes.question_before_removal(site.string, site.module)
    if asked is not None:  # as what it asks for
        removal = present(key_prefixes.removal(asked[1], site.module))
        of_models = all(model_names.is_models(n, site.module, study) for n in removal.names)
        decision = _removed(removal, site, study)
        if not of_models or not models:
            return decision
        if not asked[0].orelse:
            return replace(decision, edits=(), message="gone with it")
    call = site.module.table.parents[site.string]
    proposal = study.proposal()
    if models and isinstance(call, ast.Call) and _is_unwrapping(site.string, call):
        asked_of = study.models(call.args[0], site.module).constructors or models
        around = {c for c in asked_of if c.keeps_class}
        if around:
            return study.left(
                site,
                RULE,
                "the model may be of a class derived from FSDP's, which keeps the module in it",
                "ask by class whether it is, and for its module then",
                models=asked_of,
                quiet=True,
            )
        proposal.replace(site.module, call, code("{v}", v=call.args[2]))
        message = "an FSDP2 model has no inner module"
        return study.rewritten(site, RULE, message, proposal, models=models)
    alternative = _alternative(site) if models else None
    if alternative is not None:
        choice, arm = alternative
        others = [code("{v}", v=value) for value in choice.values if value is not arm]
        proposal.replace(site.module, choice, join(" or ", others))
        proposal.claims.gone.add(arm)
        message = "gone, no FSDP2 model has it"
        return study.rewritten(site, RULE, message, proposal, models=models)
    clean = str(site.string.value).replace("_fsdp_wrapped_module.", "")
    spelled = clean != site.string.value and bool(PATH.fullmatch(clean))
    spelled = spelled and bool(models) and not _in_f_string(call)
    if spelled and model_names.meets_models(site.string, site.module, study):
        proposal.replace(site.module, site.string, code("{s}", s=f'"{clean}"'))
        return study.rewritten(site, RULE, "the name without it", proposal, models=models)
    if key_prefixes.has_twin(site.string, site.module):
        message = "kept: names without it are in the same list"
        return (
            study.kept_as_is(site, RULE, message, models=models)
            if models
            else no_models(site, study)
        )
    name = key_prefixes.asked_name(site.string, site.module)
    name = name or key_prefixes.changed_name(site.string, site.module)
    if name is not None and not (models and model_names.is_models(name, site.module, study)):
        return _for_names_with_it(site, study)
    if _is_listed_prefix(site):
        return _for_names_with_it(site, study)
    message = "FSDP2 has no such part in its names"
    if not spelled:
        return study.left(site, RULE, message, "drop what was done for FSDP1's names")
    return study.left(
        site,
        RULE,
        f"{message}, and it is not seen whose name this is",
        "write it without that part where it is for names of a model; what FSDP1 saved keeps it",
        models=models,
        quiet=not site.module.is_of_tests,  # a test fails by a name, and trains nothing
    )


def _of_own_wrappers(site: Site, study: Study, *, removes: bool) -> Decision:
    """What is done for the names of a class of the project's own, which keep the part."""
    return study.kept_as_is(
        site,
        RULE,
        "kept: a class of the project's own has it in its names",
        models=study.every_constructor,
        review="" if removes else "FSDP2 gives names without this part, unlike the project's class",
    )


def _for_names_with_it(site: Site, study: Study) -> Decision:
    """What is done for names that have the part, and for no others: FSDP1's files keep it."""
    models = study.every_constructor
    if not models:
        return no_models(site, study)
    decision = study.kept_as_is(
        site,
        RULE,
        "kept: names that come from elsewhere may have it",
        models=models,
        review="FSDP2 gives names without this part: nothing is done for them here",
    )
    said = key_prefixes.changes_follow(site.string, site.module)
    return replace(decision, edits=()) if said else decision


def _is_listed_prefix(site: Site) -> bool:
    """FSDP1's part alone, among prefixes that are taken off names: ``("module.",
    "_fsdp_wrapped_module.")``, which does nothing to names that have none."""
    listed = site.module.table.parents[site.string]
    if not isinstance(listed, (ast.Tuple, ast.List, ast.Set)) or len(listed.elts) < 2:
        return False
    values = [e.value if isinstance(e, ast.Constant) else None for e in listed.elts]
    is_prefixes = all(isinstance(value, str) and value.endswith(".") for value in values)
    is_bare = site.string.value == f"{key_prefixes.PART}."
    return is_prefixes and is_bare and not key_prefixes.is_picked_from(listed, site.module)


def _alternative(site: Site) -> tuple[ast.BoolOp, ast.BoolOp] | None:
    """``isinstance(m, Block) or (hasattr(m, "_fsdp_wrapped_module") and ...)``, and its last part,
    which is for FSDP1's wrapper alone."""
    table = site.module.table
    asked = table.parents[site.string]
    match asked:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=key_prefixes.PART)]):
            pass
        case _:
            return None
    arm = table.parents[asked]
    match arm, table.parents[arm]:
        case ast.BoolOp(op=ast.And(), values=[first, *_]), ast.BoolOp(op=ast.Or()) as choice if (
            first is asked
        ):
            return choice, arm
    return None


def _removed(removal: key_prefixes.Removal, site: Site, study: Study) -> Decision:
    """Code that takes FSDP1's part out of names: it goes where all of them are a model's."""
    models = study.every_constructor
    if not models:
        return no_models(site, study)
    if not all(model_names.is_models(name, site.module, study) for name in removal.names):
        message = "kept: names that come from elsewhere may have it"
        return study.kept_as_is(site, RULE, message, models=models)
    proposal = study.proposal()
    if removal.listed is not None:
        listed = join(", ", [code("{o}", o=other) for other in removal.others])
        proposal.replace(site.module, removal.listed, code("({o},)", o=listed))
    elif _repeats(site.statement, removal.calls[0]):
        around = site.module.table.parents[site.statement]
        proposal.delete(site.module, around if _only_asks(around, site) else site.statement)
    else:
        proposal.replace(site.module, removal.calls[0], code("{v}", v=removal.names[0]))
    return study.rewritten(site, RULE, "names are clean", proposal, models=models)


def no_models(site: Site, study: Study) -> Decision:
    """Code that does no harm to names without the part: there is nothing to say about it."""
    left = study.left(site, RULE, study.no_models, "drop it when none is FSDP1's any more")
    return replace(left, edits=(), cause=Cause.KEPT)


def _only_asks(around: ast.AST, site: Site) -> TypeGuard[ast.If]:
    """Whether the removal stands in an ``if`` that only asks for what it removes."""
    if not isinstance(around, ast.If):
        return False
    strings = [n for n in ast.walk(around.test) if isinstance(n, ast.Constant)]
    asked = [key_prefixes.question_before_removal(string, site.module) for string in strings]
    return not around.orelse and any(found and found[0] is around for found in asked)


PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*\.?")  # a dotted name, no pattern


def _in_f_string(parent: ast.AST) -> bool:
    return isinstance(parent, (ast.JoinedStr, ast.FormattedValue))


def _repeats(statement: ast.stmt, call: ast.Call) -> bool:
    """``name = name.replace(...)``, which would become ``name = name``."""
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    paths = [access_path(target) for target in statement.targets]
    alone = len(statement.targets) == 1
    return alone and paths[0] is not None and paths[0] == access_path(method_of(call).value)


def _is_unwrapping(node: ast.Constant, call: ast.Call) -> bool:
    """``getattr(model, "_fsdp_wrapped_module", default)``."""
    named = call.func.id if isinstance(call.func, ast.Name) else ""
    exact = str(node.value).strip(".") == key_prefixes.PART
    return exact and named == "getattr" and len(call.args) == 3 and call.args[1] is node
