"""Write an auto wrap policy out as a loop over the modules it picks.

## What changes
The modules that FSDP1's policy would have wrapped become units by a loop that shards children before
parents: `isinstance` tests for class policies (`transformer_auto_wrap_policy`, `ModuleWrapPolicy`), the
predicate for `lambda_auto_wrap_policy` and `CustomPolicy`, all of them for `_or_policy`. A policy made in
another function or file is converted where it is made. Policies that count parameters are walked by a
support function with FSDP1's arithmetic.

## Why
`fully_shard` shards the module it is given and nothing else. Too few units gather the whole model at
once; units in the wrong order fail (`Invariant encountered`).

## What stays for you
Policies whose origin is outside the given paths, and `CustomPolicy` functions that return arguments for
single modules.

## Since torch
2.6

## References
- torch/distributed/fsdp/wrap.py
- https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/parallelize.py
"""

from fsdp_migrate import policies
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

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

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    if site.construct == RULE.handles[0]:
        return _argument(site, study)
    return _origin(site, study)


def _argument(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    try:
        use = policies.use(value, plan, study)
    except policies.Unreadable as problem:
        return study.left(site, RULE.code, str(problem), "write the loop over the modules by hand")
    plan.setup.extend(use.setup)
    plan.targets, plan.walk = use.targets, use.walk
    return study.rewritten(site, RULE.code, use.message)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    if conversion is None:
        return study.left(
            site,
            RULE.code,
            "no FSDP constructor in the given paths uses this policy",
            "delete it, or migrate the code that uses it together with it",
        )
    proposal = study.proposal()
    if conversion.new is not None:
        policies.convert(site, conversion.new, proposal)
    models = conversion.constructors
    return study.rewritten(site, RULE.code, conversion.message, proposal, models=models)
