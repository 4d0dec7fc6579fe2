"""Names that lead through FSDP1's wrapper: ``getattr(model, "module")``, ``"module.fc1"``.

FSDP2's models have no ``module`` around them, so that a name that ``getattr`` or ``get_submodule``
follows part for part leads nowhere now.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

LED = Construct.parse("name that leads through the wrapper")
NAME = re.compile(r"module(\.\w+)+")
FOLLOWING = frozenset({"get_submodule", "get_parameter", "get_buffer", "attrgetter"})
DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.keyword, ast.Starred)
TOLD = (
    "FSDP1's wrapper had the model in module, and FSDP2's model has none: this name leads nowhere "
    'if it is followed from a sharded model. Leave out "module." then, and keep it for DDP'
)


def find_names(study: Study, module: Module) -> Iterator[Site]:
    """Sites for names by which a sharded model's inside is asked for through its wrapper."""
    if not study.constructors or any(c.keeps_class for c in study.constructors.values()):
        return
    for call in module.table.calls_by_name.named("getattr"):
        match call:
            case ast.Call(args=[asked, ast.Constant(value="module")], keywords=[]):
                if study.traced(asked, module):
                    yield Site(LED, module, call, call.func, asked)
    for string in module.table.strings:
        if NAME.fullmatch(str(string.value)) and _is_followed(string, study, module):
            yield Site(LED, module, string, string)


def _is_followed(string: ast.Constant, study: Study, module: Module) -> bool:
    """Whether a name is followed part for part, here or in what it is given to."""
    node: ast.AST = string
    for parent in module.table.ancestors(string):
        match parent:
            case ast.Call(func=func) if last_name(func) in FOLLOWING:
                return True
            case ast.Attribute(value=value, attr="split") if value is string:
                return _follows(enclosing_function(module, string))
            case ast.Call(func=func) if node is not func:
                return any(
                    _follows(v.module.source.tree if isinstance(v, Class) else v.node)
                    for v in study.values(func, module)
                    if isinstance(v, (Class, Function))
                )
            case ast.Assign(targets=[ast.Name()]) | ast.For():
                return _follows(enclosing_function(module, string))
            case _ if not isinstance(parent, DISPLAYS):
                return False
        node = parent
    return False


def _follows(code: ast.AST) -> bool:
    """Whether some code asks for attributes by names that it computes."""
    for node in walk(code):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]):
                if not isinstance(name, ast.Constant):
                    return True
            case ast.Call(func=func, args=[ast.Name(id="getattr"), *_]):
                if last_name(func) == "reduce":
                    return True
            case ast.Call(func=func) if last_name(func) in FOLLOWING:
                return True
    return False


def decide_name(site: Site, study: Study, rule: str) -> Decision:
    if not isinstance(site.node, ast.Call):
        return study.rewritten(site, rule, "kept", models=study.every_constructor, review=TOLD)
    found = study.models(site.subject, site.module)
    proposal = study.proposal()
    form = "{m}" if found.certain else 'getattr({m}, "module", {m})'
    proposal.replace(site.module, site.node, code(form, m=site.subject))
    return study.rewritten(site, rule, "the model itself", proposal, models=found.constructors)
