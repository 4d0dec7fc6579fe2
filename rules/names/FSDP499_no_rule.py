"""FSDP1 names that no rule knows."""

import ast

from fsdp_migrate.families.modules import freed_units, handed_classes
from fsdp_migrate.families.names import absent_names, silent_fallbacks
from fsdp_migrate.families.parameters import unit_lists
from fsdp_migrate.families.training_loop.handle_questions import decide_question
from fsdp_migrate.families.wrapping import chosen_classes
from fsdp_migrate.fsdp1.api import (
    FLAT_FIELDS,
    FSDP,
    PACKAGE,
    STATE_METHODS,
    UNMISTAKABLE,
    without_mark,
)
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.model_attributes import FLAT
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.spelled_names import COMMAND
from fsdp_migrate.planning import string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind, present

RULE = Rule(
    code="FSDP499",
    name="no_rule",
    handles=("*", "absent name"),
    since="2.4",
    finders=(Finder(270, absent_names.find_absent, always=True),),
)


HANDLES = (
    "to move the parameters, call model.to(device): p.data = ... does nothing to a sharded one; to "
    "free or gather a unit, call reshard() or unshard() of the module, which do no harm to one "
    "that is replicated; for anything else go over the parameters"
)
FLAT_HELP = (
    "go over the parameters instead, which are DTensors of their own name and shape: change them "
    "in place and move them by model.to(device), for p.data = ... does nothing to a sharded one"
)
# What to use in place of an attribute that FSDP2 models have not.
INSTEAD = {
    "_handle": HANDLES,
    "_handles": HANDLES,
    "_all_handles": HANDLES,
    "_has_params": "ask isinstance(module, FSDPModule), and whether the unit has parameters",
    "compute_device": "keep the device that the model is sharded on, or ask the mesh for its type",
    "mixed_precision": "keep the policy that the model is sharded with, and ask that",
    "sharding_strategy": "keep the setting, or ask the mesh of a parameter: one rank in its last "
    "dimension means NO_SHARD, two dimensions otherwise mean hybrid sharding",
    "params": FLAT_HELP,
    "training_state": "keep a flag of the project's own",
}


# What is said once of many such names in a file.
REPLACED_TOGETHER = (
    "{names} are replaced, which a migrated model would not feel. Do what they are replaced for on "
    "the FSDP2 model, or drop it."
)
PRIVATE_TOGETHER = (
    "{names} are private to FSDP1, and know nothing of FSDP2 models. Do what they are used for on "
    "the FSDP2 model, or drop it."
)
ATTRIBUTES_TOGETHER = "An FSDP2 model has none of {names}. Drop what was done with them."
FLAT_TOGETHER = (
    f"An FSDP2 model has no flat parameters, and so none of {{names}}. {sentences(FLAT_HELP)}"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == absent_names.CONSTRUCT:
        return absent_names.decide_absent(site, study, RULE.code)
    if isinstance(getattr(site.reference, "ctx", None), ast.Store):
        replaced = ast.unparse(site.reference)
        left = study.left(
            site,
            RULE.code,
            f"{replaced} is replaced, which a migrated model would not feel",
            "do what it is replaced for on the FSDP2 model, or drop it",
            models=study.every_constructor if site.receiver is None else _concerned(site, study),
            quiet=getattr(site.reference, "attr", "") not in WHEN_REDUCED,
        )
        return left.with_others(replaced, REPLACED_TOGETHER)
    kind, named = site.construct.kind, site.construct.name
    if kind is ConstructKind.ATTRIBUTE_BY_NAME:
        return _asked_by_name(named, site, study)
    if kind is ConstructKind.NAME_IN_STRING:
        return _named(named, site, study)
    if site.construct == string_references.TEXT:
        return study.left(
            site,
            RULE.code,
            "this string holds code that imports FSDP1",
            "migrate that code by hand, or in a file of its own",
        )
    if kind is ConstructKind.BYTES:
        return study.left(
            site,
            RULE.code,
            "FSDP2 has no such part in its names",
            "drop what was done for FSDP1's names",
        )
    if site.construct == COMMAND:
        return _command(site, study)
    if site.construct.kind is ConstructKind.UNBOUND:
        return _unbound(site, study)
    asked = site.module.table.parents[site.node]
    if isinstance(asked, ast.Call) and getattr(asked.func, "id", "") == "getattr":
        return study.left(
            site,
            RULE.code,
            "what is looked up on FSDP1's class passes over an FSDP2 model without an error",
            "spell it out, and run again",
            models=study.every_constructor,
            quiet=True,
        )
    answered = decide_question(site, study) if site.construct.attribute else None
    if answered is None and site.construct.attribute and study.constructors:
        answered = freed_units.decide_freed(site, RULE.code, study)
        if site.construct.attribute == "params":
            answered = unit_lists.decide_listed(site, RULE.code, study)
    if answered is not None:
        return answered
    flat = kind is ConstructKind.MEMBER and named == FLAT and site.receiver is not None
    name = site.construct.attribute
    if name or flat:
        reason = f"an FSDP2 model has no {name}"
        help_ = INSTEAD.get(name, "drop what was done with it")
        if flat:
            reason = f"an FSDP2 model has no flat parameters, and so no {site.construct.last}"
            help_ = FLAT_HELP
        quiet = isinstance(site.reference, ast.Attribute) and silent_fallbacks.is_passed_over(
            site.reference, site.module, study
        )
        if quiet and name in ORDER:
            message = "kept: it is passed over for an FSDP2 model"
            return study.rewritten(
                site,
                RULE.code,
                message,
                models=_concerned(site, study),
                review=PREFETCHING,
                once=True,
            )
        left = study.left(
            site,
            RULE.code,
            reason,
            help_,
            models=_concerned(site, study) if quiet else (),
            quiet=quiet,
        )
        if flat:
            return left.with_others(site.construct.last, FLAT_TOGETHER)
        return left if name in INSTEAD else left.with_others(name, ATTRIBUTES_TOGETHER)
    if (
        site.construct == chosen_classes.VALUE
        and study.constructors
        and handed_classes.is_only_asked(site, study)
    ):
        proposal = study.proposal()
        new = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
        proposal.replace(site.module, site.mention, code("{n}", n=new))
        message = "FSDPModule: what is given it only asks whether something is of it"
        return study.rewritten(site, RULE.code, message, proposal, models=study.every_constructor)
    listed = isinstance(asked, (ast.Tuple, ast.List, ast.Set))
    if kind is ConstructKind.VALUE and listed and study.constructors:
        return study.left(
            site,
            RULE.code,
            "FSDP stands among classes that FSDP2 models may be told by",
            "put FSDPModule in its place if they are for isinstance, and run again",
            models=study.every_constructor,
            quiet=True,
        )
    reason, help_ = _plainly(site.construct)
    is_value = site.construct == chosen_classes.VALUE
    asked_for_statics = is_value and chosen_classes.is_asked_for_statics(study)
    if asked_for_statics:
        reason = "FSDP1's class gets another name, by which its statics are asked for"
        help_ = "ask for them by the class itself, and run again"
    if asked_for_statics or (is_value and chosen_classes.is_called(site, study)):
        models = study.reached_from(site.module)  # what it makes may be taken for theirs
        return study.left(site, RULE.code, reason, help_, models=models, quiet=True)
    left = study.left(site, RULE.code, reason, help_)
    plain = kind in {ConstructKind.VALUE, ConstructKind.ISINSTANCE, ConstructKind.ANNOTATION}
    if plain or not site.construct.is_private or site.construct.last in PRIVATE:
        return left
    return left.with_others(site.construct.last, PRIVATE_TOGETHER)


# What only says when gradients are reduced: their sum is the same.
WHEN_REDUCED = frozenset({"no_sync"})


# What FSDP1 keeps of the order it gathers in: when it gathers changes no number.
ORDER = frozenset({"_exec_order_data"})
PREFETCHING = (
    "what is set here for FSDP1's prefetching no longer has an effect: FSDP2 prefetches by itself, "
    "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch say how far"
)


def _plainly(construct: Construct) -> tuple[str, str]:
    """What is used of FSDP1, and what to do about it, in words for the marker."""
    kind, name = construct.kind, construct.last
    private = "private " if construct.is_private else ""
    if kind is ConstructKind.VALUE:
        return (
            f"FSDP1's {name} is handed on, and what is done with it is not seen here",
            "hand on fully_shard, FSDPModule or what else it is used for",
        )
    if kind is ConstructKind.ISINSTANCE:
        return (
            f"FSDP1's {private}{name} is asked for, of which migrated code makes none",
            "ask for what takes its place, or drop the question",
        )
    if kind is ConstructKind.ANNOTATION:
        return (
            f"FSDP1's {private}{name} is the type here, of which migrated code makes none",
            "write the type of what takes its place",
        )
    if private:
        return f"{name} is private to FSDP1, and knows nothing of FSDP2 models", (
            PRIVATE.get(name, "do what it is used for on the FSDP2 model, or drop it")
        )
    return f"there is no FSDP2 form of {construct} that is known to do the same", (
        "migrate it by hand"
    )


# What to use in place of functions that are private to FSDP1.
PRIVATE = {
    "_is_fsdp_flattened": "ask whether the parameter is a DTensor; one that is still on the meta "
    "device is in no sharded unit",
    "_lazy_init": "drop it: an FSDP2 model needs no such call before its parameters are used",
    "_recursive_wrap": "go over the modules and wrap those that the policy picks",
}


def _named(named: str, site: Site, study: Study) -> Decision:
    """FSDP1 that is got by name: ``getattr(fsdp, name)``. Its models would meet migrated code."""
    parent = site.module.table.parents[site.node]
    function = parent.func if isinstance(parent, ast.Call) else None
    name = getattr(function, "attr", getattr(function, "id", ""))
    replaced = isinstance(site.node, ast.Constant) and name in string_references.REPLACERS
    if replaced and not _is_torchs(site.node):
        return _replaced(named, parent, site, study)
    makes_models = named in {FSDP, PACKAGE, f"{PACKAGE}.fully_sharded_data_parallel"}
    wraps = makes_models and not replaced and not _asked(site.node)
    named = without_mark(named)
    return study.left(
        site,
        RULE.code,
        f"{named} of FSDP1 is got by its name" if named != PACKAGE else "FSDP1 is got by its name",
        "import it by a statement, and run again, or migrate it by hand",
        models=study.every_constructor if wraps else (),
        quiet=wraps,
    )


def _is_torchs(node: ast.AST) -> bool:
    return string_references.DOTTED.fullmatch(str(getattr(node, "value", ""))) is not None


def _replaced(named: str, call: ast.AST, site: Site, study: Study) -> Decision:
    """``patch("train.FSDP")``: migrated code has no such name, and does not ask for it."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    quiet = any(k.arg in {"create", "raising"} for k in keywords)  # a missing name is no error
    named = without_mark(named)
    return study.left(
        site,
        RULE.code,
        f"{named} is replaced by its name, which migrated code does not use",
        "replace fully_shard in its place" if named == FSDP else "replace what takes its place",
        models=study.every_constructor if quiet else (),
        quiet=quiet,
    )


def _asked(node: ast.AST) -> bool:
    """``hasattr(fsdp, "FullyShardedDataParallel")`` gets nothing."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"hasattr", "delattr"}


def _asked_by_name(named: str, site: Site, study: Study) -> Decision:
    """``getattr(model, "clip_grad_norm_", None)`` is quiet about what an FSDP2 model has not."""
    asked = getattr(site.call.func, "id", "")
    if named in STATE_METHODS:
        return study.left(
            site,
            RULE.code,
            f"{named} is asked for by its name, and is another of an FSDP2 model",
            f"call {named} on the model, and run again",
            models=_concerned(site, study),
            quiet=study.traced(site.subject, site.module),
        )
    quiet = asked == "hasattr" or (asked.endswith("attr") and len(site.call.args) > 2)
    if named == "no_sync" and asked == "getattr" and quiet:
        return study.rewritten(
            site,
            RULE.code,
            "kept: an FSDP2 model takes what is given for models without it",
            models=_concerned(site, study),
            review="" if _is_entered_without_gradients(site) else SYNCHRONIZED,
        )
    private = named in UNMISTAKABLE | FLAT_FIELDS
    asked_plainly = f"{ast.unparse(site.subject)}.{named}"
    help_ = f"write {asked_plainly} where it is FSDP1's, and run again"
    return study.left(
        site,
        RULE.code,
        f"an FSDP2 model has no {named}",
        FLAT_HELP if named in FLAT_FIELDS else INSTEAD.get(named, help_) if private else help_,
        models=_concerned(site, study),
        quiet=quiet
        and not (
            private and not silent_fallbacks.decides_more_than_messages(site.node, site.module)
        ),
    )


def _is_entered_without_gradients(site: Site) -> bool:
    """Whether the context manager is entered together with ``torch.no_grad()`` alone."""
    table = site.module.table
    assigned = table.parents[site.node]
    if not isinstance(assigned, ast.Assign) or not isinstance(assigned.targets[0], ast.Name):
        return False
    name = assigned.targets[0]
    entered = [
        table.parents[table.parents[use]] for use in table.reads(name.id, table.scope_of(name))
    ]
    return all(
        isinstance(item, ast.withitem)
        and any(
            last_name(getattr(other.context_expr, "func", other.context_expr)) in NO_GRADIENTS
            for other in of_kind(table.parents[item], ast.With).items
        )
        for item in entered
    )


NO_GRADIENTS = frozenset({"no_grad", "inference_mode"})
SYNCHRONIZED = (
    "an FSDP2 model has no no_sync, so that what is given for other models is entered: gradients "
    "are reduced after every micro-batch, which trains the same and communicates more"
)


def _concerned(site: Site, study: Study) -> frozenset[Constructor]:
    """The models that a site may be about: all, where nothing tells which."""
    known = study.models(site.subject, site.module).constructors
    return known or study.every_constructor


def _command(site: Site, study: Study) -> Decision:
    """A notebook's command, which is no Python: ``!torchrun train.py``."""
    excerpt = present(site.module.source.excerpt)
    mask = excerpt.masks[of_kind(site.node, ast.Name).id]
    meets_models = mask.shares_names and not mask.text.endswith("?")
    return study.left(
        site,
        RULE.code,
        "a command of the notebook that is not read as Python speaks of FSDP1 or of its models",
        "migrate it by hand",
        models=study.every_constructor if meets_models else (),
        quiet=meets_models,
    )


def _unbound(site: Site, study: Study) -> Decision:
    """A method of a model that is looked up on FSDP1's class: on FSDP2's it gives shards."""
    method = ast.unparse(site.reference)
    models = study.every_constructor
    if isinstance(site.node, ast.Call) and site.node.args:
        models = study.models(site.node.args[0], site.module).constructors or models
    return study.left(
        site,
        RULE.code,
        f"{method} is FSDP1's own, whatever model it is given",
        f"call {method.rpartition('.')[2]} on the model, and run again",
        models=models,
        quiet=True,
    )
