"""Classes of models whose first base has no dictionary: ``class Model(ABC, nn.Module)``.

``fully_shard`` gives a module a class derived from ``FSDPModule`` and its own. Python refuses that
where the first base has empty ``__slots__`` ("object layout differs"), and takes it where
``nn.Module`` stands first. Measured on Python 3.11; FSDP1's wrapper left the class alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.stored_models import is_module
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.kinds import of_kind

CONSTRUCT = Construct.parse("order of bases")
SLOTTED = frozenset({"abc.ABC", "typing.Generic", "typing.Protocol"})
REASON = "fully_shard cannot derive a class from it, for its first base has no dictionary"


def find_slotted_bases(study: Study, module: Module) -> Iterator[Site]:
    """A site for every class that may be sharded and has such a base in front of ``nn.Module``."""
    if not study.constructors or not module.mentions("ABC", "Generic", "Protocol"):
        return
    for node in module.table.scopes:
        if not isinstance(node, ast.ClassDef) or len(node.bases) < 2:
            continue
        cls = Class(node, module)
        slotted = _is_slotted(node.bases[0], module, study) and is_module(cls, study)
        if slotted and any(makers(cls, study)):
            yield Site(CONSTRUCT, module, node.bases[0], node.bases[0])


def decide_order(site: Site, study: Study, rule: str) -> Decision:
    """Put the base that is a module first, where the other is no class of the project's."""
    first = site.expression
    cls = of_kind(site.module.table.parents[first], ast.ClassDef)
    models = frozenset(makers(Class(cls, site.module), study))
    others = [base for base in cls.bases[1:] if _is_of_modules(base, site.module, study)]
    own = any(isinstance(v, Class) for v in study.values(_plain(first), site.module))
    if own or len(others) != 1:
        return study.left(
            site, rule, REASON, "put the class of modules first among the bases", models=models
        )
    proposal = study.proposal()
    proposal.replace(site.module, first, code("{b}", b=ast.unparse(others[0])))
    proposal.replace(site.module, others[0], code("{b}", b=ast.unparse(first)))
    return study.rewritten(site, rule, "the class of modules stands first", proposal, models=models)


def makers(cls: Class, study: Study) -> Iterator[Constructor]:
    """The constructors that may shard objects of a class."""
    for constructor in study.reached_from(cls.module):
        if any(each.node is cls.node for each in model_contents.classes(constructor, study)):
            yield constructor


def _is_slotted(base: ast.expr, module: Module, study: Study) -> bool:
    """Whether a base, or the first of its own bases and so on, is one of ``SLOTTED``."""
    if study.external(_plain(base), module) & SLOTTED:
        return True
    return any(
        _is_slotted(value.node.bases[0], value.module, study)
        for value in study.values(_plain(base), module)
        if isinstance(value, Class) and value.node.bases and not is_module(value, study)
    )


def _plain(base: ast.expr) -> ast.expr:
    """``Generic`` of ``Generic[T]``."""
    return base.value if isinstance(base, ast.Subscript) else base


def _is_of_modules(base: ast.expr, module: Module, study: Study) -> bool:
    names = study.external(base, module)
    of_torch = any(name.startswith("torch.nn.") for name in names)
    classes = (v for v in study.values(base, module) if isinstance(v, Class))
    return of_torch or any(is_module(cls, study) for cls in classes)
