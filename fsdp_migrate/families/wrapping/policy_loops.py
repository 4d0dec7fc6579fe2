"""What emitted code does with an auto wrap policy: a loop over the modules that it picks.

The loop tests each module, by its class, with the policy's predicate, or by its size where that is
one test of several; ``units_by_size`` lists those of a size alone. Any other policy that counts
parameters is handed to ``shard_by_policy`` of the support module, which walks as FSDP1 did.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from operator import or_

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Class, External, Values
from fsdp_migrate.families.wrapping import policy_sizes
from fsdp_migrate.families.wrapping.policies import (
    Kind,
    Policy,
    is_open,
    read,
    written_here,
)
from fsdp_migrate.families.wrapping.policy_functions import asks_for_classes, doubt_of_parameters
from fsdp_migrate.families.wrapping.policy_places import (
    PolicyUse,
    convert_origin,
    is_local,
    is_named_for_list,
    sole_assignment,
    under_a_name,
)
from fsdp_migrate.families.wrapping.policy_uses import is_used_otherwise
from fsdp_migrate.families.wrapping.refused_modules import CONTAINERS
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import ShardPlan, Targets
from fsdp_migrate.syntax.kinds import elements_of, present
from fsdp_migrate.syntax.trees import FUNCTIONS

# Earlier releases refuse every list of modules, unless it stands in a list.
TAKES_LISTS = Version("2.12")
PREDICATE, CLASSES = "predicate on a module", "tuple of classes"  # what a policy may become
KEPT = "kept: shard_by_policy asks it as FSDP1 did"
CALLED = (
    "the policy is called here without a module, which FSDP1 stopped at: it is taken for what "
    "functools.partial would make of it"
)
NOWHERE = code("")  # a policy with a statement of its own, which goes
LONGEST_TEST = 60  # columns of a class tuple in a condition; a longer one gets a name


def express_policy(argument: ast.expr, plan: ShardPlan, study: Study) -> PolicyUse:
    """Decide how the constructor's policy is expressed, and ask for the origins' conversions.

    Raises:
        Unreadable: see :func:`.policies.read`.
    """
    use = _expressed(argument, plan, study)
    values = study.values(argument, plan.constructor.module)
    known = not any(is_open(v, study) for v in values)
    called = CALLED if known and any(p.is_called for p in read(values, study)) else ""
    doubts = (called, use.review, doubt_of_parameters(values, study))
    return replace(use, review="; ".join(filter(None, doubts)))


def _expressed(argument: ast.expr, plan: ShardPlan, study: Study) -> PolicyUse:
    constructor = plan.constructor
    values = study.values(argument, constructor.module)
    if any(is_open(v, study) for v in values):
        return _any_callable(argument, values, plan, study)
    found = written_here(read(values, study), argument, constructor.module, study)
    real = [p for p in found if p.kind is not Kind.NONE]
    nullable = len(real) < len(found)
    if not real:
        return PolicyUse("dropped, there is no policy")
    if not nullable and _may_be_asked_in_loop(real):
        result = _asked_in_loop(argument, real, plan, study)
    elif policy_sizes.are_counts(real, argument, plan.constructor, study):
        return policy_sizes.loop(argument, real, plan, study, nullable=nullable)
    elif any(is_used_otherwise(p, study) or p.asks_computed_classes for p in real) or (
        any(p.needs_walk for p in real) and not policy_sizes.are_tests(real, constructor, study)
    ):
        return _walked(argument, real, plan, study, nullable=nullable)
    elif len(found) == 1 and is_local(argument, real[0], plan, study):
        result = _inlined(argument, real[0], plan, study)
    else:
        result = _by_value(argument, real, plan, study, nullable=nullable)
    if result.targets is not None and study.target < TAKES_LISTS:
        lists = _lists_that_run(study)
        result.targets.in_brackets = any(_may_pick(p, lists, study) for p in real)
    return result


def _lists_that_run(study: Study) -> set[ast.ClassDef]:
    """The project's classes of module lists with a ``forward`` of their own."""
    found = set()
    for name in CONTAINERS:
        for cls in study.tracer.derived(name):
            lineage = study.tracer.lineage(cls)
            if any(
                isinstance(f, FUNCTIONS) and f.name == "forward"
                for c in lineage
                for f in c.node.body
            ):
                found.add(cls.node)
    return found


def _may_pick(policy: Policy, lists: set[ast.ClassDef], study: Study) -> bool:
    """Whether a policy may pick instances of some of the classes."""
    if not lists or policy.kind in {Kind.ALL, Kind.NONE}:
        return False
    if policy.kind is Kind.ANY:
        return any(_may_pick(each, lists, study) for part in policy.parts for each in part)
    if policy.kind is not Kind.CLASSES or policy.argument is None:
        return True
    listed = getattr(policy.argument, "elts", [policy.argument])
    for value in (v for e in listed for v in study.values(e, policy.module)):
        if isinstance(value, Class):
            if lists & {c.node for c in (value, *study.tracer.subclasses(value))}:
                return True
        elif not isinstance(value, External) or value.name in CONTAINERS:
            return True
    return False


def _any_callable(argument: ast.expr, values: Values, plan: ShardPlan, study: Study) -> PolicyUse:
    """Leave a policy that is not known to ``shard_by_policy``, which calls it as FSDP1 did."""
    for policy in read((v for v in values if not is_open(v, study)), study):
        if policy.kind is not Kind.NONE:
            _keep(policy, plan, study)
    why = study.unknown(values) or "it comes from outside the given paths"
    walk, setup = under_a_name(argument, plan)
    return PolicyUse(
        "shard_by_policy asks it as FSDP1 did",
        walk=walk,
        may_be_none=not all(getattr(v, "made_by", "") == "functools.partial" for v in values),
        setup=setup,
        review=f"the policy cannot be followed ({why}); shard_by_policy takes any callable",
    )


def _inlined(argument: ast.expr, policy: Policy, plan: ShardPlan, study: Study) -> PolicyUse:
    _consume(policy, plan, study)
    if policy.node is not argument:
        statement = present(sole_assignment(argument, policy.node, policy.module, study))
        plan.proposal.delete(policy.module, statement)
    variable = _preferred_variable(policy)
    setup: tuple[Code, ...] = ()
    if policy.kind is Kind.CLASSES and policy.argument is not None:
        classes = class_tuple(policy.argument)
        made = classes.template.startswith("tuple(") or policy.computes_classes
        if made or len(classes.preview()) > LONGEST_TEST:
            name = plan.fresh("wrap_classes")  # made once, not for every module
            setup = (code("{n} = {c}", n=name, c=classes),)
            classes = code("{n}", n=name)
        plan.unit_classes = classes
    for each in policy.joined:
        if policy.kind is Kind.ANY and not policy.named and each.by_size and not plan.size_tests:
            name = plan.fresh("is_large")
            test = policy_sizes.test(each, "module", plan)
            setup += (code("def {n}(module):\n    return {t}", n=name, t=test),)
            plan.size_tests[each.node] = name
    targets = Targets(
        lambda name: _operand(policy, _test(policy, name, plan)),
        by_class=_by_class(policy),
        counts=policy.counts_joined,
        variable=variable,
        classes=policy.argument if policy.kind is Kind.CLASSES else None,
    )
    return PolicyUse(_describe(policy), targets=targets, setup=setup)


def _consume(policy: Policy, plan: ShardPlan, study: Study) -> None:
    """Take the policy away where it was made, because the constructor's loop has it now.

    Joined policies that have a name stay behind as predicates.
    """
    convert_origin(policy, None, _describe(policy), plan, study)
    if policy.kind is Kind.ANY:
        _convert_joined(policy, plan, study)


def _convert_joined(policy: Policy, plan: ShardPlan, study: Study) -> None:
    """Take joined policies away where they stand in the list, or have a name for that alone; others
    with a name, or in a list with one, stay behind as predicates."""
    for element, part in _joined(policy):
        if element is not None and len(part) == 1 and part[0].node is element:
            _consume(part[0], plan, study)
        elif element is not None and is_named_for_list(element, part):
            convert_origin(part[0], NOWHERE, _describe(part[0]), plan, study)
        else:
            for each in part:
                _to_predicate(each, plan, study)


def _joined(policy: Policy) -> list[tuple[ast.expr | None, tuple[Policy, ...]]]:
    """What may be each of some joined policies, with how it is written in the list, if the list has
    no name of its own."""
    if policy.named:
        return [(None, part) for part in policy.parts]
    return list(zip(elements_of(policy.argument), policy.parts, strict=True))


def _test(policy: Policy, variable: str, plan: ShardPlan) -> Code:
    """The test for a loop variable where the policy's own names are in scope."""
    argument = policy.argument
    if policy.kind is Kind.CLASSES and argument is not None:
        classes = plan.unit_classes or class_tuple(argument)
        return code("isinstance({v}, {c})", v=variable, c=classes)
    if policy.kind is Kind.PREDICATE and argument is not None:
        if isinstance(argument, ast.Lambda):
            if [a.arg for a in argument.args.args] == [variable]:
                return code("{b}", b=argument.body)
            return code("({f})({v})", f=argument, v=variable)
        return code("{f}({v})", f=argument, v=variable)
    if policy.kind is Kind.ANY:
        if policy.named:
            return code("any(picks({v}) for picks in {l})", v=variable, l=present(argument))
        tests = []
        for element, part in _joined(policy):
            inline = len(part) == 1 and part[0].node is element
            inline = inline or is_named_for_list(present(element), part)
            called = code("{f}({v})", f=present(element), v=variable)
            tests.append(_test(part[0], variable, plan) if inline else called)
        return join(" or ", tests)
    if policy.node in plan.size_tests:
        return code("{n}({v})", n=plan.size_tests[policy.node], v=variable)
    if policy.by_size:
        return policy_sizes.test(policy, variable, plan)
    nn = plan.proposal.module_name(policy.module, "torch.nn", "nn", policy.node)
    return code("not isinstance({v}, ({nn}.ModuleList, {nn}.ModuleDict))", v=variable, nn=nn)


def _operand(policy: Policy, test: Code) -> Code:
    """A test that can stand behind ``and``."""
    return code("({t})", t=test) if policy.kind is Kind.ANY else test


def _by_value(
    argument: ast.expr, real: list[Policy], plan: ShardPlan, study: Study, *, nullable: bool
) -> PolicyUse:
    """Use a policy that arrives as a value: each origin is converted, in whatever file it is."""
    by_class = all(p.kind is Kind.CLASSES for p in real)
    for policy in real:
        if by_class:
            _to_classes(policy, plan, study)
        else:
            _to_predicate(policy, plan, study)
    setup: tuple[Code, ...] = ()
    value = code("{a}", a=argument)
    if access_path(argument) is None:
        name = plan.fresh("wrap_classes" if by_class else "wrap_policy")
        setup = (code("{n} = {a}", n=name, a=argument),)
        value = code("{n}", n=name)

    def test(variable: str) -> Code:
        if by_class:
            classes = code("{p} or ()", p=value) if nullable else value
            return code("isinstance({v}, {c})", v=variable, c=classes)
        return code("{p}({v})", p=value, v=variable)

    counts = any(p.counts_joined for p in real)
    asked = value if nullable else None
    targets = Targets(test, by_class=by_class, counts=counts, unless_none=asked)
    return PolicyUse("loop over model.modules()", targets=targets, setup=setup)


def _to_classes(policy: Policy, plan: ShardPlan, study: Study) -> None:
    convert_origin(policy, written_in(CLASSES, policy), CLASSES, plan, study)


def written_in(form: str, policy: Policy) -> Code:
    """A policy that picks by class, in one of its forms."""
    classes = present(policy.argument)
    if form == PREDICATE:
        return code("lambda module: isinstance(module, {c})", c=class_tuple(classes))
    display = isinstance(classes, (ast.Set, ast.List, ast.Tuple)) and classes.elts
    if display and not any(isinstance(e, ast.Starred) for e in classes.elts):  # type: ignore[attr-defined]
        items = [code("{e}", e=e) for e in classes.elts]  # type: ignore[attr-defined]
        return code("({i},)" if len(items) == 1 else "({i})", i=join(", ", items))
    return code("tuple({c})", c=classes)


def _to_predicate(policy: Policy, plan: ShardPlan, study: Study) -> None:
    argument = policy.argument
    if policy.kind is Kind.PREDICATE and argument is not None:
        new = code("{f}", f=argument)
    elif policy.kind is Kind.ANY:
        _convert_joined(policy, plan, study)
        new = code("lambda module: {t}", t=_test(policy, "module", plan))
    else:
        new = code("lambda module: {t}", t=_test(policy, "module", plan))
    convert_origin(policy, new, PREDICATE, plan, study)


def _walked(
    argument: ast.expr, real: list[Policy], plan: ShardPlan, study: Study, *, nullable: bool
) -> PolicyUse:
    """A policy that counts parameters is handed, as it is, to the support function that walks."""
    for policy in real:
        _keep(policy, plan, study)
    message = "shard_by_policy walks the modules as FSDP1 did"
    if argument.lineno == argument.end_lineno and not nullable:
        return PolicyUse(message, walk=code("{a}", a=argument))
    walk, setup = under_a_name(argument, plan)
    return PolicyUse(message, walk=walk, may_be_none=nullable, setup=setup)


def _may_be_asked_in_loop(real: list[Policy]) -> bool:
    """Whether each of the policies is a callable that looks into every module."""
    by_class = [p.kind is Kind.CLASSES for p in real]
    looking = [p.looks_everywhere for p in real]
    return any(looking) and all(map(or_, by_class, looking))


def _asked_in_loop(
    argument: ast.expr, real: list[Policy], plan: ShardPlan, study: Study
) -> PolicyUse:
    """A policy function that looks everywhere is asked for each module, as it is."""
    for policy in real:
        _keep(policy, plan, study, "kept: the loop asks it for every module")
    policy_code, setup = under_a_name(argument, plan)

    def test(variable: str) -> Code:
        given = f"module={variable}, recurse=False, nonwrapped_numel=0"
        return code(f"{{p}}({given})", p=policy_code)

    labels = any(policy.labels for policy in real)
    by_class = len(real) == 1 and not labels and asks_for_classes(real[0].node)
    targets = Targets(test, by_class=by_class, asks_root=labels)
    return PolicyUse("loop over the modules it picks", targets=targets, setup=setup)


def _keep(policy: Policy, plan: ShardPlan, study: Study, message: str = KEPT) -> None:
    convert_origin(policy, None, message, plan, study)
    for part in policy.parts:
        for each in part:
            _keep(each, plan, study, message)


def _by_class(policy: Policy) -> bool:
    if policy.kind is Kind.ANY:
        return all(_by_class(p) for part in policy.parts for p in part)
    return policy.kind in {Kind.CLASSES, Kind.ALL}


def _preferred_variable(policy: Policy) -> str:
    """The name of a lambda's parameter: the loop's variable has it, so that the body can stay."""
    argument = policy.argument
    if policy.kind is Kind.PREDICATE and isinstance(argument, ast.Lambda):
        names = [a.arg for a in argument.args.args]
        if len(names) == 1:
            return names[0]
    return ""


def _describe(policy: Policy) -> str:
    return {
        Kind.CLASSES: "loop over the modules of these classes",
        Kind.PREDICATE: "loop over the modules the predicate picks",
        Kind.ANY: "loop over the modules any of the policies picks",
        Kind.ALL: "loop over all modules",
        Kind.WALK: "loop over the modules of this size",
    }[policy.kind]


def class_tuple(classes: ast.expr) -> Code:
    """A class expression for ``isinstance``: ``{A}`` -> ``A``, ``{A, B}`` -> ``(A, B)``."""
    if isinstance(classes, (ast.Set, ast.List, ast.Tuple)) and classes.elts:
        if any(isinstance(e, ast.Starred) for e in classes.elts):
            return code("tuple({c})", c=classes)
        if len(classes.elts) == 1:
            return code("{c}", c=classes.elts[0])
        return code("({c})", c=join(", ", [code("{e}", e=e) for e in classes.elts]))
    return code("tuple({c})", c=classes)


def convert(site: Site, new: Code, proposal: Proposal) -> None:
    """Replace a policy where it is made; a predicate that gets a name becomes a function."""
    node, module, start = site.expression, site.module, "lambda module: "
    if new is NOWHERE:
        proposal.delete(module, module.table.statement(node))
        return
    is_function = new.template.startswith(start)
    variable, body = "module", Code(new.template.removeprefix(start), new.parts)
    match new.parts.get("f") if new.template == "{f}" else None:
        case ast.Lambda(args=ast.arguments([], [given], None, [], [], None, []), body=own):
            is_function, variable, body = True, given.arg, code("{b}", b=own)
    match module.table.parents[node]:
        case ast.Assign(targets=[ast.Name(id=name)]) as made if is_function:
            define = code("def {n}({v}):\n    return {b}", n=name, v=variable, b=body)
            proposal.replace_statement(module, made, define)
        case _:
            proposal.replace(module, node, new)
