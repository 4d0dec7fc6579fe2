"""``hasattr(model, "_fsdp_wrapped_module")``: whether something is FSDP1's wrapper.

Where the branch takes the wrapper off, which leaves the model itself, FSDP2's class is asked for. A
loop that takes wrappers off stays: it has nothing to do for an FSDP2 model.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints.compiled_models import may_be_compiled
from fsdp_migrate.families.names import own_wrappers
from fsdp_migrate.families.names.key_prefixes import PART
from fsdp_migrate.families.names.prefix_strings import no_models
from fsdp_migrate.fsdp1 import inner_questions
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Mark, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome

RULE = "FSDP406"


def decide_wrapper_question(site: Site, study: Study) -> Decision | None:
    """The answer for a question whose branch uses the module inside."""
    table = site.module.table
    call = table.parents[site.string]
    match call:
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=value)]):
            path = access_path(owner)
        case _:
            return None
    if value != PART or path is None:
        return None
    if study.cache(own_wrappers.hold_modules):
        return None
    asking = {
        asked: attribute
        for attribute in table.attributes_by_name.named(PART)
        if access_path(attribute.value) == path
        if (asked := inner_questions.asked_first(attribute, site.module)) is not None
    }
    inside = [a for asked, a in asking.items() if call in ast.walk(asked.test)]
    if inside and not study.constructors:
        return no_models(site, study)
    settled = [study.settled.get(a) for a in inside]
    if not settled or any(d is None or d.outcome is Outcome.LEFT for d in settled):
        return None
    found = study.models(owner, site.module).constructors or study.every_constructor
    changed = [any(not isinstance(e, Mark) for e in d.edits) for d in settled if d is not None]
    if not any(changed):
        message = "kept: no FSDP2 model has it, and nothing is taken off"
        return study.kept_as_is(site, RULE, message, models=found)
    of_a_class = any(c.keeps_class for c in found)
    if not all(changed) or of_a_class or may_be_compiled(found, study):
        return None
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", call)
    proposal.replace(site.module, call, code("isinstance({m}, {n})", m=path, n=name))
    message = "isinstance FSDPModule: the model is its own module"
    return study.rewritten(site, RULE, message, proposal, models=found)
