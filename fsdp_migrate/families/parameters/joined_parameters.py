"""Parameters or gradients that are put behind a vector one by one.

``flat = torch.cat([flat, p.grad.view(-1)])`` in a loop, or in a function that ``reduce`` calls for
each: a ``DTensor`` and a plain tensor do not go together, so that the program stops there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.elements import lists_of, variable_of
from fsdp_migrate.families.parameters.parameter_owners import models_of_list
from fsdp_migrate.families.parameters.vectors import CATS, JOINING, PARTS, flat_base, joined_parts
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.scopes import Kind

RULE = "FSDP408"
JOINED = Construct.parse("parameter put behind a vector")


def find_joined_parameters(study: Study, module: Module) -> Iterator[Site]:
    """A site for every parameter that is written as one of the parts of a vector."""
    for call in module.table.calls_by_name.of(JOINING) if study.constructors else ():
        if study.external(call.func, module).isdisjoint(CATS) or is_gathered(call, study, module):
            continue
        for part in joined_parts(call):
            base = flat_base(part, names_in(part))
            if base is not None and _models(base, study, module):
                yield Site(JOINED, module, base, base, base)


def _models(base: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models that a parameter is of, also where a lambda is called for each."""
    lists = [*lists_of(base, study, module), *_given_to_lambda(base, study, module)]
    return frozenset[Constructor]().union(
        *(models_of_list(each, study, where) for each, where in lists)
    )


def _given_to_lambda(
    base: ast.expr, study: Study, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    variable = variable_of(base)
    for definition in study.defined_by(variable, module) if isinstance(variable, ast.Name) else ():
        function = module.table.parents.get(module.table.parents.get(definition.node, variable))
        if definition.kind is Kind.PARAMETER and isinstance(function, ast.Lambda):
            yield from applied_functions.given_each(function, definition.path, study)


def decide_joined(site: Site, study: Study) -> Decision:
    """Put this rank's part into the vector, where FSDP1 had its own piece."""
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", site.node)
    proposal.replace(site.module, site.expression, code("{f}({b})", f=function, b=site.expression))
    models = _models(site.expression, study, site.module)
    return study.rewritten(site, RULE, "of this rank's part", proposal, models=models, review=PARTS)
