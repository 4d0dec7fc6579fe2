"""Parameters of classes of their own: 4-bit ones of bitsandbytes, and the project's.

``fully_shard`` puts plain ``nn.Parameter``s of ``DTensor``s in their place. What the class knew
(``quant_state``, methods) is gone, and packed weights are cut like any others. FSDP1 kept the
parameters, outside of forward, with ``use_orig_params=True`` only; 4-bit ones of a floating-point
storage trained with and without it, and integers of 8 bits it refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Function, Made, Values
from fsdp_migrate.families.parameters import attributes
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.one_program import can_meet
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS

FOUR_BIT = Construct.parse("4-bit parameters")
EIGHT_BIT = Construct.parse("8-bit parameters")
SUBCLASS = Construct.parse("class of parameters")
WORDS = (b"4bit", b"4Bit", b"NF4", b"FP4", b"8bit")
LAYERS = frozenset(
    f"bitsandbytes.nn.{part}{name}"
    for part in ("", "modules.")
    for name in (
        *("Linear4bit", "LinearNF4", "LinearFP4", "Params4bit"),
        *("Embedding4bit", "EmbeddingNF4", "EmbeddingFP4"),
    )
)
SETTING = "load_in_4bit"
OF_EIGHT = "load_in_8bit"
# Functions that give back the model they are given, or put it in another.
HANDING_BACK = frozenset(
    {
        "peft.get_peft_model",
        "peft.PeftModel.from_pretrained",
        "peft.prepare_model_for_kbit_training",
        "torch.nn.Sequential",
    }
)
ASKING = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "type", "print"})
PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})


def find_parameter_classes(study: Study) -> Iterator[Site]:
    """Sites where 4-bit parameters are made, and for the project's classes of parameters."""
    mentioned = any(w in m.source.data for m in study.project.modules for w in WORDS)
    for module in study.project.modules:
        found = list(_four_bit(module, study)) if mentioned else []
        found += list(_subclasses(module, study))
        for site in found:
            if models_concerned(site, study):
                yield site


# -- where they are made --------------------------------------------------------------------------


def _four_bit(module: Module, study: Study) -> Iterator[Site]:
    for node in module.table.scopes:
        if isinstance(node, ast.ClassDef) and any(_is_layer(b, module, study) for b in node.bases):
            yield Site(FOUR_BIT, module, node, node)
    variables: set[tuple[object, str]] = set()
    for call in module.table.calls:
        if _is_layer(call.func, module, study):
            if isinstance(call.func, ast.Name) and _is_variable(call.func, module):
                variable = (module.table.scope_of(call.func).lookup(call.func.id), call.func.id)
                if variable in variables:
                    continue  # which of its calls makes them is not known: one marker will do
                variables.add(variable)
            yield Site(FOUR_BIT, module, call, call)
        elif _is_handed_on(call, module, study) or _may_load(call):
            yield Site(FOUR_BIT, module, call, call)
        elif _loads_eight(call) and not _is_own(call.func, module, study):
            yield from _unless_chosen(Site(EIGHT_BIT, module, call, call), study)
    for constant in module.table.strings:
        holder = module.table.parents[constant]
        if not isinstance(holder, ast.Dict):
            continue
        if constant.value == SETTING and _may_load(holder):
            yield Site(FOUR_BIT, module, holder, holder)
        elif constant.value == OF_EIGHT and _loads_eight(holder):
            yield from _unless_chosen(Site(EIGHT_BIT, module, holder, holder), study)


def _may_load(node: ast.AST) -> bool:
    """Whether ``load_in_4bit`` is given as something that may be true."""
    return any(not (isinstance(v, ast.Constant) and not v.value) for v in _settings(node))


def _loads_eight(node: ast.AST) -> bool:
    """Whether ``load_in_8bit`` is given, and true: a setting that may be stops in both FSDPs."""
    given = _settings(node, OF_EIGHT)
    return any(isinstance(v, ast.Constant) and v.value is True for v in given)


def _unless_chosen(site: Site, study: Study) -> Iterator[Site]:
    """A site where 8-bit weights are loaded whatever is set: FSDP1 refused them, so that a setting
    for them is for runs without it."""
    if not _is_chosen(site, study):
        yield site


def _is_own(function: ast.expr, module: Module, study: Study) -> bool:
    """Whether a function or class of the project is called, which has a call of its own."""
    return any(isinstance(v, (Class, Function)) for v in study.values(function, module))


def _settings(node: ast.AST, setting: str = SETTING) -> list[ast.expr]:
    """What a call, or a dictionary, gives as ``load_in_4bit``, or another setting."""
    if isinstance(node, ast.Call):
        return [k.value for k in node.keywords if k.arg == setting]
    if not isinstance(node, ast.Dict):
        return []
    entries = zip(node.keys, node.values, strict=True)
    return [v for k, v in entries if isinstance(k, ast.Constant) and k.value == setting]


def _is_layer(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is a class of bitsandbytes', or a function that makes one of it."""
    names = study.external(node, module)
    if not names and isinstance(node, ast.Name) and _is_variable(node, module):
        values = study.values(node, module)
        names = frozenset(v.name for v in values if isinstance(v, External))
    return any(n in LAYERS or n.rpartition(".")[0] in LAYERS for n in names)


def _is_variable(name: ast.Name, module: Module) -> bool:
    scope = module.table.scope_of(name).lookup(name.id)
    return scope is not None and scope.is_function


def _is_handed_on(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a function outside the project is given the class: it may make instances of it."""
    if isinstance(call.func, ast.Name) and call.func.id in ASKING:
        return False
    given = given_arguments(call)
    if not any(study.external(g, module) & LAYERS for g in given):
        return False
    return not _is_own(call.func, module, study)


def _subclasses(module: Module, study: Study) -> Iterator[Site]:
    """A site for every class of parameters, but for those derived from another one of the
    project's: what is said of that holds for them."""
    for node in module.table.scopes:
        if not isinstance(node, ast.ClassDef) or not node.bases:
            continue
        likely = any("Parameter" in ast.unparse(base) for base in node.bases)
        if not likely or not study.tracer.external_bases(Class(node, module)) & PARAMETER:
            continue
        _, *bases = study.tracer.lineage(Class(node, module))
        if not any(study.tracer.external_bases(base) & PARAMETER for base in bases):
            yield Site(SUBCLASS, module, node, node)


# -- whose they are -------------------------------------------------------------------------------


def models_concerned(site: Site, study: Study) -> list[Constructor]:
    """The constructors of models that may have such parameters, and kept them in FSDP1."""
    every = list(study.constructors.values())
    if site.construct in {FOUR_BIT, EIGHT_BIT}:
        # Such layers are put in place of others, in any model that they can get to.
        return [c for c in every if can_meet(site.module, c.module, study)]
    kept = [c for c in every if attributes.keeps_attributes(c, study) is not None]
    return [c for c in kept if _may_have(c, site, study)]


def _may_have(constructor: Constructor, site: Site, study: Study) -> bool:
    if not constructor.wraps:
        return True
    for each in constructor.wraps:
        found = model_contents.contents(each.wrapped, each.module, study)
        outside = {
            n.split(".", maxsplit=1)[0] for n in found.externals
        } - model_contents.HARMLESS_ROOTS
        own = {cls.node for cls in found.classes}
        around = {site.node, *site.module.table.ancestors(site.node)}
        if isinstance(site.node, ast.ClassDef):
            derived = study.tracer.subclasses(Class(site.node, site.module))
            around |= {
                each for c in derived for each in (c.node, *c.module.table.ancestors(c.node))
            }
        if outside or not found.complete or own & around:
            return True
    return False


def wrapped_by(site: Site, study: Study) -> list[Constructor]:
    """The constructors whose model is seen to get the 4-bit parameters of a site.

    None where a condition decides, or what is ignored may keep them out of the sharding.
    """
    if _is_setting(site) or _is_chosen(site, study):
        return []
    return [
        c
        for c in models_concerned(site, study)
        if not (c.is_context or c.has("ignored_modules") or c.has("ignored_states"))
        and any(_Parts(study, w.module).hold(w.wrapped, site) for w in c.wraps)
    ]


def _is_setting(site: Site) -> bool:
    """Whether ``load_in_4bit`` is given as anything but ``True``."""
    given = _settings(site.node)
    return any(not (isinstance(g, ast.Constant) and g.value is True) for g in given)


def _is_chosen(site: Site, study: Study) -> bool:
    """Whether a condition decides what a site makes: for a class that is derived from a 4-bit one,
    wherever it is named to make objects of it; for what is kept first, wherever it is taken."""
    node, module = site.node, site.module
    if isinstance(node, ast.ClassDef):
        return _are_conditional(_made_of(node, module, study))
    if _are_conditional(_taken(node, module, study)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        values = study.values(node.func, module)
        layers = {v for v in values if isinstance(v, External) and v.name in LAYERS}
        if layers and values - layers:
            return True
    return _is_conditional(node, module)


def _are_conditional(places: Iterable[tuple[ast.AST, Module]]) -> bool:
    found = list(places)
    return bool(found) and all(_is_conditional(each, where) for each, where in found)


def _taken(node: ast.AST, module: Module, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    """Where a variable of a function is read that is given what a site makes, or where a function
    is called that gives it back."""
    table, function = module.table, references.enclosing_function(module, node)
    if not isinstance(function, FUNCTIONS):
        return  # what a module keeps is read in other files as well
    match table.parents[node]:
        case ast.Assign(targets=[ast.Name(id=name) as kept]):
            scope = table.within[kept].lookup(name)
            for read in table.names_by_id.named(name):
                if isinstance(read.ctx, ast.Load) and table.within[read].lookup(name) is scope:
                    yield read, module
        case ast.Return():
            for caller in study.tracer.callers(function, module):
                yield caller.call, caller.module


def _made_of(cls: ast.ClassDef, module: Module, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    """Where a class, or one derived from it, is named by what may make objects of it."""
    classes = {c.node for c in study.tracer.subclasses(Class(cls, module))} | {cls}
    names = {c.name for c in classes}
    for where in study.project.modules:
        table = where.table
        also = {b.name for b in table.imports if b.qualified.rpartition(".")[2] in names}
        named: list[ast.Name | ast.Attribute] = [*table.names_by_id.of(names | also)]
        for each in (*named, *table.attributes_by_name.of(names)):
            if not isinstance(each.ctx, ast.Load) or _only_asks(each, where, classes):
                continue
            values = study.values(each, where)
            if any(isinstance(v, Class) and v.node in classes for v in values):
                yield each, where


def _only_asks(named: ast.expr, module: Module, classes: set[ast.ClassDef]) -> bool:
    """Whether a class is named in itself, as a base, as a type, or where a question asks for it."""
    child: ast.AST = named
    for parent in module.table.ancestors(named):
        match parent:
            case ast.ClassDef() if parent in classes:
                return True
            case ast.arg() | ast.AnnAssign() if parent.annotation is child:
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() if parent.returns is child:
                return True
            case ast.Call(func=ast.Name(id=asked)) if asked in ASKING:
                return True
        child = parent
    return False


def _is_conditional(node: ast.AST, module: Module) -> bool:
    """Whether a condition stands around a node, or in front of it and returns, unless it asks for
    the class of a module."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.Match):
            return True
        if isinstance(parent, (ast.If, ast.IfExp)) and _is_choice(parent.test):
            return True
        for block in (getattr(parent, "body", None), getattr(parent, "orelse", None)):
            if isinstance(block, list) and child in block:
                before = [s for s in block[: block.index(child)] if isinstance(s, ast.If)]
                if any(isinstance(s.body[-1], ast.Return) and _is_choice(s.test) for s in before):
                    return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = parent
    return False


def _is_choice(test: ast.expr) -> bool:
    return not names_in(test) & {"isinstance", "issubclass", "__name__"}


@dataclass
class _Parts:
    """What the project's code puts into a model."""

    study: Study
    module: Module
    seen: set[ast.AST] = field(default_factory=set)

    def hold(self, model: ast.expr, site: Site) -> bool:
        """Whether the node of ``site`` makes a part of ``model``."""
        self._expression(model, self.module)
        own = model_contents.contents(model, self.module, self.study)
        self.seen |= {cls.node for cls in own.classes}
        self._changes(self.study.values(model, self.module))
        return not self.seen.isdisjoint((site.node, *site.module.table.ancestors(site.node)))

    def _expression(self, node: ast.expr, module: Module) -> None:
        self._values(self.study.values(node, module))

    def _values(self, values: Values) -> None:
        for value in values:
            if value.node in self.seen or isinstance(value, Function):
                continue
            self.seen.add(value.node)
            if not isinstance(value, Made) or not isinstance(value.node, ast.Call):
                continue
            call = value.node
            if value.made_by in HANDING_BACK:
                for given in call.args:
                    self._expression(given, value.module)
            settings = [k.value for k in call.keywords if k.arg in {"quantization_config", None}]
            for setting in settings:
                self._expression(setting, value.module)

    def _changes(self, values: Iterable[object]) -> None:
        """Functions of the project that are given the model, and layers set on it."""
        nodes = {v.node for v in values if isinstance(v, (Made, Display))} | {
            n for n in self.seen if isinstance(n, ast.Call)
        }
        table = self.module.table
        for call in table.calls:
            if not any(self._starts_from(a, nodes) for a in call.args[:1]):
                continue
            if _is_conditional(call, self.module):
                continue
            for callee in self.study.values(call.func, self.module):
                if isinstance(callee, Function):
                    self.seen.add(callee.node)
        for attribute in table.attributes:
            statement = table.parents[attribute]
            if not isinstance(attribute.ctx, ast.Store) or not isinstance(statement, ast.Assign):
                continue
            if self._starts_from(attribute, nodes) and not _is_conditional(statement, self.module):
                self.seen.add(statement.value)

    def _starts_from(self, node: ast.expr, nodes: set[ast.AST]) -> bool:
        """Whether a path such as ``model.layers`` starts from one of some values."""
        if access_path(node) is None:
            return False
        while isinstance(node, ast.Attribute):
            node = node.value
        return any(v.node in nodes for v in self.study.values(node, self.module))
