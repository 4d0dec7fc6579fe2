"""Migrate calls of accelerate's `FullyShardedDataParallelPlugin`."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import plugin_calls, prepared
from fsdp_migrate.configurations.frameworks import accelerate, accelerate_plugin
from fsdp_migrate.configurations.frameworks.words import BUFFERS
from fsdp_migrate.configurations.plugin_calls import PluginCall
from fsdp_migrate.configurations.settings import Change
from fsdp_migrate.families.precision import packed_storage, precision
from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Finder, Rule

PLUGIN = Construct.parse(f"{plugin_calls.NAME}()")


def _find(study: Study, module: Module) -> Iterator[Site]:
    for plugin in study.cache(plugin_calls.plugin_calls):
        if plugin.module is module and _is_version_1s(plugin):
            yield Site(PLUGIN, module, plugin.call, plugin.call.func)


RULE = Rule(
    code="FSDP511",
    name="accelerate_plugin",
    handles=(str(PLUGIN),),
    finders=(Finder(260, _find, always=True),),
)

SHARED = "{0} is not made for this call alone, and FSDP1's names in it are not to be seen here"
BY_HAND = "write what it is in the call, and run again"
BESIDE = (
    "what the call does not say may come from {0}: migrate both, as version 2 ignores the strategy "
    "of version 1 there"
)
POLICY = (
    "version 2 knows units by their classes alone: it takes another policy, and makes one unit of "
    "the whole model"
)
INPUTS = (
    "version 1 casts what the whole model is given; version 2 what each unit is given, float "
    "masks and rotary tables among it"
)
OUTPUTS = "version 2 also casts what each unit returns, a loss among it"
OBJECTS = {  # what version 2 takes no longer, by argument
    "cpu_offload": ("CPUOffload",),
    "mixed_precision_policy": ("MixedPrecision",),
    "auto_wrap_policy": tuple(fsdp1.POLICIES),
}
CHANGED = ("sharding_strategy", "auto_wrap_policy", "mixed_precision_policy", "cpu_offload")


class Unreadable(Exception):
    """What an argument is is not known; the message says why, and what to write."""

    def __init__(self, reason: str, help: str = BY_HAND) -> None:
        super().__init__(reason)
        self.help = help


def _is_version_1s(plugin: PluginCall) -> bool:
    """Whether there is anything to do."""
    settings = plugin.settings()
    if not accelerate_plugin.is_version_2(settings):
        return True
    taken = any(plugin.mentions(argument, *names) for argument, names in OBJECTS.items())
    return taken or bool(accelerate_plugin.migrate(settings))


def decide(site: Site, study: Study) -> Decision:
    plugin = next(p for p in study.cache(plugin_calls.plugin_calls) if p.call is site.node)
    reason = plugin.problem or _elsewhere(plugin, study)
    library = study.project.library
    reason = reason or _not_said(plugin, library.accelerate) or library.accelerate_left
    if reason:
        return study.left(
            site, RULE.code, reason, "write fsdp_version=2 with its arguments by hand"
        )
    installed = study.project.library.pinned("accelerate", site.module.path)
    changes = accelerate_plugin.migrate(plugin.settings(), installed)
    for change in changes:
        if change.outcome is Outcome.LEFT:
            return study.left(site, RULE.code, change.message, change.help or BY_HAND)
    proposal = study.proposal()
    try:
        reviews = [*_objects(plugin, proposal, study)]
    except (Unreadable, precision.Unreadable) as problem:
        help_ = problem.help if isinstance(problem, Unreadable) else BY_HAND
        return study.left(site, RULE.code, str(problem), help_)
    for change in changes:
        _write(change, plugin, proposal)
    reviews += [sentences(c.message, c.help) for c in changes if c.outcome is Outcome.REVIEW]
    beside = study.project.library.accelerate
    if beside and not _says(plugin, accelerate_plugin.STRATEGY, accelerate_plugin.RESHARD):
        reviews.append(BESIDE.format(_listed(beside)))
    told = [c.message for c in changes if c.new is not None]
    told += [f"without {c.old}" for c in changes if c.new is None]
    said = "; ".join(dict.fromkeys(told))
    review = " ".join(map(sentences, reviews))
    in_parts = study.cache(_prepared_in_parts) if _is_first(plugin, study) else None
    if in_parts is not None:
        proposal.mark(*in_parts, RULE.code, sentences(accelerate.TOGETHER))
        if review:
            proposal.mark(site.module, site.node, RULE.code, review)
        review = f"{review} {accelerate.TOGETHER}".strip()
    return study.rewritten(
        site,
        RULE.code,
        said or "for version 2",
        proposal,
        review=review,
        marked=in_parts is not None,
    )


def _says(plugin: PluginCall, *names: str) -> bool:
    return any(plugin.given(name) is not None for name in names)


def _not_said(plugin: PluginCall, beside: Mapping[str, Mapping[str, object]]) -> str:
    """What decides of a call, and may stand in settings beside the program."""
    for name, values in beside.items():
        new = str(values.get("fsdp_version")) == "2"
        if new and not _says(plugin, accelerate_plugin.VERSION, accelerate_plugin.RESHARD):
            return f"the version does not stand here, and fsdp_version: 2 stands in {name}"
        kind = str(values.get("fsdp_state_dict_type", "FULL_STATE_DICT")).upper()
        if kind not in {"FULL_STATE_DICT", "1"} and not _says(plugin, accelerate_plugin.STATE):
            return f"the kind of checkpoint does not stand here, and {kind} stands in {name}"
    return ""


def _listed(beside: Mapping[str, object]) -> str:
    names = sorted(beside)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


NAMED = 3  # files, in a sentence


def _is_first(plugin: PluginCall, study: Study) -> bool:
    return plugin is next(p for p in study.cache(plugin_calls.plugin_calls) if _is_version_1s(p))


def _prepared_in_parts(study: Study) -> tuple[Module, ast.Call] | None:
    """The first call that prepares a model without its optimizer, or the other way around."""
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(prepared.NAMES):
            if plugin_calls.is_of_accelerator(call, module, study) and prepared.is_part(call):
                return module, call
    return None


def _elsewhere(plugin: PluginCall, study: Study) -> str:
    """What the program does with the plugin, or with models, that is version 1's alone."""
    for module in study.project.modules:
        for attribute in module.table.attributes_by_name.of(CHANGED):
            if plugin_calls.is_field_of_plugin(attribute, module, study):
                done = "set" if isinstance(attribute.ctx, ast.Store) else "asked for"
                return f"its {attribute.attr} is {done} in {module.path.name}"
    return plugin_calls.of_version_1(study)


# -- arguments that are no objects ------------------------------------------------------------


def _write(change: Change, plugin: PluginCall, proposal: Proposal) -> None:
    """One argument, as the change says."""
    keyword = next((k for k in plugin.call.keywords if k.arg == change.old), None)
    if keyword is None:
        assert change.new is not None
        proposal.add_keyword(plugin.module, plugin.call, change.new[0], _value(change.new[1]))
        return
    assigned = plugin.owned.get(change.old)
    if change.new is not None and change.new == (change.old, plugin.settings()[change.old].value):
        return
    if assigned is not None:
        proposal.delete(plugin.module, assigned)
    if change.new is None:
        proposal.remove_argument(plugin.module, plugin.call, keyword)
        return
    if change.new[0] != change.old:
        proposal.rename_keyword(plugin.module, plugin.call, keyword, change.new[0])
    proposal.replace(plugin.module, keyword.value, _value(change.new[1]))


def _value(value: object) -> Code:
    return code("{v}", v=f'"{value}"' if isinstance(value, str) else repr(value))


# -- arguments that are objects ---------------------------------------------------------------


def _objects(plugin: PluginCall, proposal: Proposal, study: Study) -> Iterable[str]:
    """Write those that are objects of FSDP1's; what somebody has to judge."""
    yield from _offloading(plugin, proposal, study)
    yield from _precision(plugin, proposal, study)
    yield from _wrapping(plugin, proposal, study)


def _offloading(plugin: PluginCall, proposal: Proposal, study: Study) -> Iterable[str]:
    given = plugin.given("cpu_offload")
    if given is None or study.literal(given, plugin.module) is not None:
        return
    made = plugin_calls.made_by(given, plugin.module, study)
    if made == "CPUOffload" and isinstance(given, ast.Call):
        offloads = given.args[0] if given.args else None
        for keyword in given.keywords:
            offloads = keyword.value if keyword.arg == "offload_params" else None
        if offloads is None and (given.args or given.keywords):
            raise Unreadable(f"{ast.unparse(given)} is only known at run time")
        new = code("False") if offloads is None else code("{v}", v=offloads)
        proposal.replace(plugin.module, given, new)
    elif not _is_version_2s(given, plugin, study):
        raise Unreadable(SHARED.format(f"cpu_offload={ast.unparse(given)}"))
    yield from ()


def _precision(plugin: PluginCall, proposal: Proposal, study: Study) -> Iterable[str]:
    given = plugin.given("mixed_precision_policy")
    is_version_2 = accelerate_plugin.is_version_2(plugin.settings())
    if given is None:
        if not is_version_2 and plugin_calls.mixed_precision(plugin.module, study):
            yield f"{BUFFERS}; {OUTPUTS}"
        return
    constant = study.literal(given, plugin.module)
    if constant is not None:
        if isinstance(constant.value, str) and not is_version_2:
            yield f"{BUFFERS}; {OUTPUTS}"
        return
    if isinstance(given, ast.Dict):
        yield from _dictionary(given, plugin, proposal)
    elif plugin_calls.made_by(given, plugin.module, study) == "MixedPrecision":
        assert isinstance(given, ast.Call)
        mixed = precision.read_call(given, plugin.module, study)
        if mixed.flag("keep_low_precision_grads", study, default=False):
            raise Unreadable("FSDP2 has no keep_low_precision_grads", "drop it, and run again")
        precision.convert_in_place(mixed, proposal, study, given, root=True)
        if mixed.spelled("buffer_dtype") and not mixed.spelled("buffer_dtype").endswith("float32"):
            yield BUFFERS
        packed = packed_storage.disagreement(mixed.fields.get("param_dtype"), plugin.module, study)
        if packed:
            yield packed
        if mixed.spelled("param_dtype") and mixed.casts_root(study) != mixed.casts_units(study):
            yield INPUTS
    elif not _is_version_2s(given, plugin, study):
        raise Unreadable(SHARED.format(f"mixed_precision_policy={ast.unparse(given)}"))


def _dictionary(given: ast.Dict, plugin: PluginCall, proposal: Proposal) -> Iterable[str]:
    """A dictionary of dtypes, which version 2 takes with an ``output_dtype`` alone."""
    keys = [k.value if isinstance(k, ast.Constant) else None for k in given.keys]
    fields = dict(zip(keys, given.values, strict=True))
    if "output_dtype" in fields and "buffer_dtype" not in fields:
        return
    if set(keys) != {"param_dtype", "reduce_dtype", "buffer_dtype"}:
        raise Unreadable(f"{ast.unparse(given)} has other keys than accelerate's policy")
    name = proposal.name(plugin.module, fsdp1.PACKAGE, "MixedPrecisionPolicy", given)
    new = code(
        "{n}(param_dtype={p}, reduce_dtype={r})",
        n=name,
        p=fields["param_dtype"],
        r=fields["reduce_dtype"],
    )
    proposal.replace(plugin.module, given, new)
    if not ast.unparse(fields["buffer_dtype"]).endswith("float32"):
        yield BUFFERS
    if not ast.unparse(fields["param_dtype"]).endswith("float32"):
        yield INPUTS


def _wrapping(plugin: PluginCall, proposal: Proposal, study: Study) -> Iterable[str]:
    """A policy of FSDP1's: version 2 knows the names of classes alone."""
    yield from ()
    given, module = plugin.given("auto_wrap_policy"), plugin.module
    if given is None or study.literal(given, module) is not None:
        return
    keyword = next(k for k in plugin.call.keywords if k.arg == "auto_wrap_policy")
    try:
        found = policies.read(study.values(given, module), study)
    except policies.Unreadable as problem:
        raise Unreadable(f"{POLICY} ({problem})", accelerate_plugin.TO_NAMES) from problem
    if len(found) != 1 or found[0].kind is not policies.Kind.CLASSES or found[0].node is not given:
        if found and all(each.kind is policies.Kind.NONE for each in found):
            return
        raise Unreadable(POLICY, accelerate_plugin.TO_NAMES)
    names = _names(found[0].argument, plugin, study)
    if plugin.given("transformer_cls_names_to_wrap") is not None:
        raise Unreadable("it has a policy and names of classes", accelerate_plugin.TO_NAMES)
    assigned = plugin.owned.get("auto_wrap_policy")
    if assigned is not None:
        proposal.delete(module, assigned)
    proposal.replace(module, keyword.value, code('"transformer_based_wrap"'))
    proposal.add_keyword(module, plugin.call, "transformer_cls_names_to_wrap", names)


def _names(classes: ast.expr | None, plugin: PluginCall, study: Study) -> Code:
    """A list of the names of classes, of which some may be variables."""
    if isinstance(classes, ast.Call) and len(classes.args) == 1:  # set([...])
        classes = classes.args[0]
    if isinstance(classes, ast.Set | ast.Tuple | ast.List):
        return code("[{n}]", n=join(", ", [_own_name(e, plugin, study) for e in classes.elts]))
    _check_is_bound_once(classes, plugin)
    assert classes is not None
    name = ast.unparse(classes)
    return code(
        "[{each}.__name__ for {each} in {n}]", each="each" if name != "each" else "c", n=name
    )


def _own_name(node: ast.expr, plugin: PluginCall, study: Study) -> Code:
    """What a class is called where it is defined."""
    for value in study.values(node, plugin.module):
        if isinstance(value.node, ast.ClassDef):
            return code("{n}", n=f'"{value.node.name}"')
    outside = sorted(study.external(node, plugin.module))
    if len(outside) == 1:
        name = outside[0].rpartition(".")[2]
        return code("{n}", n=f'"{name}"')
    _check_is_bound_once(node, plugin)
    return code("{n}.__name__", n=ast.unparse(node))


def _check_is_bound_once(node: ast.expr | None, plugin: PluginCall) -> None:
    """A variable with one value is the same where the call stands.

    Raises:
        Unreadable: it is none.
    """
    scope = (
        plugin.module.table.scope_of(node).lookup(node.id) if isinstance(node, ast.Name) else None
    )
    if not isinstance(node, ast.Name) or scope is None or len(scope.bindings[node.id]) != 1:
        raise Unreadable(POLICY, accelerate_plugin.TO_NAMES)


def _is_version_2s(node: ast.expr, plugin: PluginCall, study: Study) -> bool:
    names = study.external(node.func, plugin.module) if isinstance(node, ast.Call) else ()
    return any(
        n.endswith(("CPUOffloadPolicy", ".OffloadPolicy", "MixedPrecisionPolicy")) for n in names
    )
