"""Write an auto wrap policy out as a loop over the modules it picks."""

from fsdp_migrate.families.wrapping import policies, policy_loops, spare_policies, vocabulary
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import wrapped_elsewhere
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(
    code="FSDP102",
    name="auto_wrap_policy",
    handles=(
        "FullyShardedDataParallel(auto_wrap_policy=)",
        "transformer_auto_wrap_policy",
        "lambda_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "always_wrap_policy",
        "_or_policy",
        "_module_wrap_policy",
        "ModuleWrapPolicy",
        "CustomPolicy",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct.is_constructor:
        return _argument(site, study)
    return _origin(site, study)


def _argument(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    try:
        use = policy_loops.express_policy(value, plan, study)
    except policies.Unreadable as problem:
        wrong = isinstance(problem, policies.NoPolicy)
        by_hand = "write the loop over the modules by hand"
        help = "give it a policy that FSDP1 takes, and run again" if wrong else by_hand
        return study.left(site, RULE.code, str(problem), help, final=wrong)
    plan.setup.extend(use.setup)
    plan.targets, plan.walk, plan.walk_may_be_none = use.targets, use.walk, use.may_be_none
    plan.by_size = use.by_size
    return study.rewritten(site, RULE.code, use.message, review=use.review)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    origin = policies.import_of(site.node, site.module)
    if conversion is None and origin is not None:
        conversion = study.conversions.get(origin)
    if conversion is None:
        outside = vocabulary.given_to_stranger(site, study)
        library = wrapped_elsewhere.library_of(study.project)
        given = "" if study.constructors else wrapped_elsewhere.POLICIES.get(library, "")
        if outside:
            help = given or "migrate it together with what takes it"
            return study.left(site, RULE.code, outside, help)
        unknown = [c for c in study.constructors.values() if _is_unknown(c, study)]
        if unknown and not study.derived:
            concerned = frozenset(unknown)
            return study.rewritten(site, RULE.code, policy_loops.KEPT, models=concerned)
        ready = not study.derived and bool(study.every_constructor)
        unread = spare_policies.statement_that_nothing_reads(site, study) if ready else None
        if unread is not None:
            proposal = study.proposal()
            proposal.delete(site.module, unread)
            everyone = study.every_constructor
            return study.rewritten(
                site, RULE.code, "dropped, nothing reads it", proposal, models=everyone
            )
        spare = spare_policies.like_others(site, study) if ready else None
        if spare is not None:
            proposal = study.proposal()
            policy_loops.convert(site, spare.new, proposal)
            return study.rewritten(
                site,
                RULE.code,
                spare.message,
                proposal,
                models=spare.constructors,
                review=spare_policies.review(site, study),
            )
        help = given or "delete it, or migrate the code that uses it together with it"
        none = "no FSDP constructor in the given paths uses this policy"
        reason = study.derived or (study.no_models if given else none)
        return study.left(site, RULE.code, reason, help)
    proposal = study.proposal()
    if conversion.new is not None:
        policy_loops.convert(site, conversion.new, proposal)
    models = conversion.constructors
    return study.rewritten(site, RULE.code, conversion.message, proposal, models=models)


def _is_unknown(constructor: Constructor, study: Study) -> bool:
    """Whether a model is wrapped by a policy that may be any."""
    policy = constructor.arguments.get("auto_wrap_policy")
    if policy is None:
        return constructor.is_open
    values = study.values(policy, constructor.module)
    return bool(study.unknown(values)) or policies.may_ask_any(values, study)
