"""Drop state dict types and configurations whose calls were migrated.

## What changes
`StateDictType`, `FullStateDictConfig` and their siblings disappear with the contexts they served; a
module-level configuration object that nothing uses any more is deleted.

## Why
Their meaning moved into `StateDictOptions` at each call.

## What stays for you
Values that are kept in configurations or compared at run time.

## Since torch
2.6

## References
- torch/distributed/fsdp/api.py
"""

import ast

from fsdp_migrate import statedicts, strategy
from fsdp_migrate.rule import Example, Keep, Outcome, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP307",
    name="state_dict_values",
    handles=(
        "StateDictType",
        "annotation(StateDictType)",
        "StateDictConfig",
        "FullStateDictConfig",
        "LocalStateDictConfig",
        "ShardedStateDictConfig",
        "OptimStateDictConfig",
        "FullOptimStateDictConfig",
        "LocalOptimStateDictConfig",
        "ShardedOptimStateDictConfig",
        "StateDictSettings",
    ),
    since="2.4",
)

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    uses = statedicts.config_users(site)
    if uses:
        owners = [_owner(use, site, study) for use in uses]
        settled = [o for o in owners if o is not None]
        if len(settled) == len(owners):
            proposal = study.proposal()
            proposal.delete(site.module, site.statement)
            models = frozenset[object]().union(*(o.models for o in settled))
            return study.rewritten(
                site,
                RULE.code,
                "its settings moved into StateDictOptions",
                proposal,
                models=models,  # type: ignore[arg-type]
            )
    if "StateDictType" in site.construct:
        return strategy.keep_vocabulary(site, "StateDictType", study, RULE.code)
    return study.left(
        site,
        RULE.code,
        f"{site.construct} is used as a value",
        "replace it together with the code that reads it",
        models=study.constructors.values(),
    )


def _owner(use: ast.Name, site: Site, study: Study) -> Decision | None:
    """The migrated call whose argument ``use`` is."""
    for parent in site.module.table.ancestors(use):
        settled = study.settled.get(parent)
        if settled is not None and settled.outcome is not Outcome.LEFT:
            return settled
        if isinstance(parent, ast.stmt):
            return None
    return None
