"""Drop state dict types and configurations whose calls were migrated."""

import ast

from fsdp_migrate.families.checkpoints import state_dict_settings
from fsdp_migrate.families.names import field_removal
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import wrapped_elsewhere
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.trees import walk

RULE = Rule(
    code="FSDP307",
    name="state_dict_values",
    handles=(
        "StateDictType",
        "StateDictConfig",
        "FullStateDictConfig",
        "LocalStateDictConfig",
        "ShardedStateDictConfig",
        "OptimStateDictConfig",
        "FullOptimStateDictConfig",
        "LocalOptimStateDictConfig",
        "ShardedOptimStateDictConfig",
        "StateDictSettings",
        "annotation(StateDictType)",
        "annotation(StateDictConfig)",
        "annotation(FullStateDictConfig)",
        "annotation(LocalStateDictConfig)",
        "annotation(ShardedStateDictConfig)",
        "annotation(OptimStateDictConfig)",
        "annotation(FullOptimStateDictConfig)",
        "annotation(LocalOptimStateDictConfig)",
        "annotation(ShardedOptimStateDictConfig)",
        "annotation(StateDictSettings)",
        "isinstance(StateDictType)",
        "isinstance(StateDictConfig)",
        "isinstance(FullStateDictConfig)",
        "isinstance(LocalStateDictConfig)",
        "isinstance(ShardedStateDictConfig)",
        "isinstance(OptimStateDictConfig)",
        "isinstance(FullOptimStateDictConfig)",
        "isinstance(LocalOptimStateDictConfig)",
        "isinstance(ShardedOptimStateDictConfig)",
        "isinstance(StateDictSettings)",
    ),
    since="2.4",
)

TOGETHER = "{names} are used as values. Replace them together with the code that reads them."


def decide(site: Site, study: Study) -> Decision:
    asking = _default(site)
    uses = [
        use
        for use in state_dict_settings.config_users(site) or ()
        if asking is None or use not in walk(asking.test)
    ]
    if uses and not any(_is_kept(use, site, study) for use in uses):
        owners = [_owner(use, site, study) for use in uses]
        settled = [o for o in owners if o is not None]
        if len(settled) == len(owners):
            proposal = study.proposal()
            if asking is not None:
                proposal.delete(site.module, asking)
            else:
                drop_assignment(site.statement, site.module, study, proposal)
            models = frozenset[object]().union(*(o.models for o in settled))
            return study.rewritten(
                site,
                RULE.code,
                "its settings moved into StateDictOptions",
                proposal,
                models=models,  # type: ignore[arg-type]
            )
    removal = field_removal.remove(site, study)
    if removal is not None:
        proposal, served = removal
        message = "its field goes: the calls that read it say what they mean"
        return study.rewritten(site, RULE.code, message, proposal, models=served)
    removal = field_removal.remove_attribute(site, study)
    if removal is not None:
        proposal, served = removal
        message = "it goes: the calls that read it say what they mean"
        return study.rewritten(site, RULE.code, message, proposal, models=served)
    name = site.construct.owner
    if name == "StateDictType" or study.run_time_states or study.claims.kept:
        return vocabulary.import_from_support(site, name, study, RULE.code)
    elsewhere = "" if study.constructors else wrapped_elsewhere.library_of(study.project)
    left = study.left(
        site,
        RULE.code,
        study.no_models or f"{site.construct} is used as a value",
        study.no_models_help if elsewhere else "replace it together with the code that reads it",
        models=study.every_constructor,
        unknown_state=True,
    )
    return left if study.no_models else left.with_others(str(site.construct), TOGETHER)


def _default(site: Site) -> ast.If | None:
    """``if not config: config = FullStateDictConfig()``, which only gives a variable a default."""
    table = site.module.table
    around = table.parents[site.statement]
    match around, site.statement:
        case (
            ast.If(
                test=ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=asked))
                | ast.Compare(
                    left=ast.Name(id=asked), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
                ),
                body=[_],
                orelse=[],
            ) as found,
            ast.Assign(targets=[ast.Name(id=name)]),
        ) if asked == name:
            above = table.parents[found]
            is_elif = isinstance(above, ast.If) and above.orelse == [found]
            return None if is_elif else found
    return None


def _is_kept(use: ast.Name, site: Site, study: Study) -> bool:
    return not study.claims.kept.isdisjoint(site.module.table.ancestors(use))


def _owner(use: ast.Name, site: Site, study: Study) -> Decision | None:
    """The migrated call whose argument ``use`` is."""
    for parent in site.module.table.ancestors(use):
        settled = study.settled.get(parent)
        if settled is not None and settled.outcome is not Outcome.LEFT:
            return settled
        if isinstance(parent, ast.stmt):
            return None
    return None
