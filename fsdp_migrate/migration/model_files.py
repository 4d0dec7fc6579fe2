"""The files that the classes of wrapped models come from, which need not say a word of FSDP.

What a model does to its own parameters is asked in the file that defines its class: how it counts
them, which parts a forward leaves out. So such a file is as much under analysis as one that wraps.
Discovery finds by import statements what the files under analysis lead to (``Library.joined``);
which of those a model is made of, its class and the classes of its parts and its bases, only values
tell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.module_values import is_librarys_module
from fsdp_migrate.migration import finding
from fsdp_migrate.planning.context import Study


def add(study: Study) -> Project:
    """The project with the files that its wrapped models' classes come from among its modules; the
    same one where these are there already, so that what the study has traced goes on to hold."""
    project = study.project
    if not project.library.joined:
        return project
    finding.find_constructors(study)
    found = {module.path: module for module in _defining(study)}
    added = [module for path, module in sorted(found.items()) if path in project.library.joined]
    if not added:
        return project
    library = project.library.without(found)
    sources = [module.source for module in (*project.modules, *added)]
    return Project(sources, library, project.read)


def _defining(study: Study) -> Iterator[Module]:
    """The modules that define classes of wrapped models, of their parts, and the bases of these."""
    for constructor in study.constructors.values():
        if constructor.is_context or not constructor.has_module:
            continue
        contents = model_contents.contents(constructor.wrapped, constructor.module, study)
        for cls in contents.classes:
            lineage = study.tracer.lineage(cls)
            if _is_module(cls, lineage, study):
                yield from (each.module for each in lineage)


def _is_module(cls: Class, lineage: list[Class], study: Study) -> bool:
    """Whether a class that code of a model makes is one of modules: it may be of settings."""
    bases = study.tracer.external_bases(cls)
    if any(base.startswith("torch.nn.") or is_librarys_module(base) for base in bases):
        return True
    return any(_has_forward(each.node) for each in lineage)


def _has_forward(node: ast.ClassDef) -> bool:
    return any(isinstance(d, ast.FunctionDef) and d.name == "forward" for d in node.body)
