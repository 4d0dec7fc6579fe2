"""Migrate what verl configures of FSDP1."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations.frameworks import verl
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.trees import walk

SETTINGS = Construct.parse("settings of verl")
OVERRIDE = re.compile(
    rf"(?:^|\s)[+]*({'|'.join(map(re.escape, verl.ROLES))})\.strategy=[\"']?fsdp\b"
)
READS = "verl reads it in what this program starts, and trains FSDP1"


def _find(study: Study, module: Module) -> Iterator[Site]:
    """The first override that a program hands to verl; what it starts is one run."""
    named = module.mentions("strategy=fsdp", "strategy='fsdp", 'strategy="fsdp')
    if not named or not module.mentions("verl") or "verl" in module.name.split(".")[:-1]:
        return
    for node in walk(module.source.tree):
        said = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.expr) and isinstance(said, str) and OVERRIDE.search(said):
            yield Site(SETTINGS, module, node, node)
            return


RULE = Rule(
    code="FSDP550",
    name="verl",
    handles=(str(SETTINGS),),
    finders=(Finder(265, _find, always=True),),
)


def decide(site: Site, study: Study) -> Decision:
    """What a program hands on is left, with what to write there."""
    help = f"write strategy=fsdp2 for each role, without {' and '.join(verl.DEAD)}; {verl.FILES}"
    return study.left(site, RULE.code, READS, help)
