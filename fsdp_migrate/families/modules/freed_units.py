"""``_free_storage(unit._handle.flat_param.data)``: the memory of a unit's parameters is given back.

FSDP2 has no flat parameter: what a rank holds of each parameter is freed, once the unit is sharded.
"""

from __future__ import annotations

import ast
import itertools

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision

FREE = "torch.distributed.utils._free_storage"


def decide_freed(site: Site, code_of_rule: str, study: Study) -> Decision | None:
    """The answer for a handle whose flat parameter is freed, in a statement of its own."""
    table = site.module.table
    around = [*itertools.islice(table.ancestors(site.reference), 4)]
    match around:
        case [
            ast.Attribute(attr="flat_param"),
            ast.Attribute(attr="data") as data,
            ast.Call(args=[given], keywords=[]) as call,
            ast.Expr() as statement,
        ] if given is data and site.construct.attribute == "_handle":
            pass
        case _:
            return None
    unit = access_path(site.subject)
    if unit is None or study.external(call.func, site.module) != {FREE}:
        return None
    proposal = study.proposal()
    loop = code(
        "for {p} in {m}.parameters():\n    if isinstance({p}, {d}):\n        {f}({p}.to_local())",
        p=proposal.fresh(site.module, site.node, "param", loop=True),
        m=unit,
        d=proposal.name(site.module, "torch.distributed.tensor", "DTensor", statement),
        f=ast.unparse(call.func),
    )
    proposal.replace_statement(site.module, statement, code("{m}.reshard()", m=unit), loop)
    models = study.models(site.subject, site.module).constructors or study.every_constructor
    message = "what this rank holds of its parameters is freed"
    return study.rewritten(site, code_of_rule, message, proposal, models=models)
