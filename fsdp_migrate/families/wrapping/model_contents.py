"""What kinds of layers and buffers a model may contain, as far as its source is in the project."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import (
    Class,
    External,
    Function,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.families.wrapping.module_values import CONTAINER, ModuleValues, is_librarys_module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, is_none
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import DEFINITIONS, walk

# Outside libraries whose models of these names are transformers without BatchNorm and without
# persistent float buffers (transformers registers its rotary tables with persistent=False).
LANGUAGE_MODELS = re.compile(
    r"^transformers\.(?!.*Vision).*(ForCausalLM|ForSeq2SeqLM|LMHeadModel|ForConditionalGeneration"
    r"|ForSequenceClassification|ForMaskedLM|ForTokenClassification|ForQuestionAnswering"
    r"|EncoderModel|TextModel(WithProjection)?)(\.|$)"
)
# What gives a model that has all of its first argument.
WRAPPERS = re.compile(
    r"(peft\.get_peft_model|copy\.copy|copy\.deepcopy|torch\.compile)$"
    r"|peft\.(\w+\.)*(?!Auto)\w*Model(For\w+)?(\.from_pretrained)?$"
)
# Packages that have no BatchNorm, but for torch's own, which has the word in its name.
HARMLESS_ROOTS = sys.stdlib_module_names | {
    *("torch", "numpy", "einops", "triton"),
    *("flash_attn", "flash_attn_interface", "sageattention", "xformers"),
    *("PIL", "ftfy", "omegaconf", "regex", "safetensors", "sentencepiece", "tokenizers", "tqdm"),
}
# Models whose layers may have buffers, and have no BatchNorm, and what is no model.
WITHOUT_NORMS = re.compile(
    r"^diffusers\..*(UNet|Transformer|ControlNet|Scheduler)"
    r"|^transformers\..*(Config|Processor|TextModel|Tokenizer)"
)
BUFFERED_LAYERS = ("BatchNorm", "InstanceNorm", "SpectralNorm", "spectral_norm")
CONVOLUTIONAL = ("timm", "torch_geometric", "monai", "resnet", "ResNet")
SHOWN = re.compile(rb"BatchNorm|\btorchvision\.(models|ops)\b|\btimm\.create_model\b")
VISION = re.compile(rb"\btorchvision(\.| import +(\w+, *)*)(models|ops)\b")
WHOLE = frozenset(f"torch.{name}" for name in ("bool", "uint8", "int32", "int64", "int", "long"))


@dataclass
class Contents:
    """The classes that a model is built of, its own and those from outside."""

    externals: set[str] = field(default_factory=set)
    classes: list[Class] = field(default_factory=list)
    buffers: list[ast.Call] = field(default_factory=list)  # that register one
    complete: bool = True  # False: part of the model is made by code that cannot be followed
    from_callers: bool = False  # ... by callers of a function that nothing in sight calls
    from_library: bool = False  # it is, or has, a language model of a library


def contents(node: ast.expr, module: Module, study: Study) -> Contents:
    """What the code that makes ``node`` constructs, in the project's classes too."""
    known = study.cache(_contents)
    if node not in known:
        result = known[node] = Contents()
        _collect(study.values(node, module), study, result, set())
    return known[node]


def classes(constructor: Constructor, study: Study) -> Iterator[Class]:
    """The project's classes, and their bases, of the module and of what may be units in it."""
    if "module" not in constructor.arguments:  # FSDP1 refuses it, or a partial binds the rest
        return
    values = study.values(constructor.wrapped, constructor.module)
    made = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
    if constructor.may_have("auto_wrap_policy"):
        made += contents(constructor.wrapped, constructor.module, study).classes
    for cls in made:
        yield from study.tracer.lineage(cls)


def _contents(study: Study) -> dict[ast.expr, Contents]:
    return {}


def _collect(values: Values, study: Study, result: Contents, seen: set[ast.AST]) -> None:
    for value in values:
        match value:
            case Made(callee=Class() as cls):
                _class(cls, study, result, seen)
                _given(value.node, value, cls, study, result, seen)
            case Made(node=ast.Call() as call) if value.made_by:
                _outside(value, call, study, result, seen)
            case _:
                result.complete = False
                given = isinstance(value, Unknown) and isinstance(value.node, ast.arg)
                result.from_callers |= given


def _outside(
    value: Made, call: ast.Call, study: Study, result: Contents, seen: set[ast.AST]
) -> None:
    name = value.made_by
    if LANGUAGE_MODELS.search(name):
        result.from_library = True
        return
    if _holds_first(name) and call.args and call not in seen:
        seen.add(call)
        _collect(study.tracer.evaluate(call.args[0], value.module), study, result, seen)
        return
    result.externals.add(name)
    if name.startswith("torch.nn."):
        for argument in call.args:  # nn.Sequential(A(), B())
            if isinstance(argument, ast.Call):
                _callee(argument, value.module, study, result, seen)
        _given(call, value, None, study, result, seen)


def _given(
    call: ast.AST,
    made: Value,
    cls: Class | None,
    study: Study,
    result: Contents,
    seen: set[ast.AST],
) -> None:
    """The modules among what a constructor is given, which become parts: ``Net(block)``. Of what a
    container is given, and a class calls, nothing need be known to be one.

    Args:
        made: where the call stands, and in which call of its function.
        cls: the class of the project's that is made.
    """
    if not isinstance(call, ast.Call) or call in seen:
        return
    seen.add(call)
    if cls is not None and not _is_module_class(cls, study):
        cls = None  # it may call a function as well
    values_of = ModuleValues(study)
    is_container = any(map(CONTAINER.match, study.external(call.func, made.module)))
    given: list[tuple[int | str, ast.expr]] = [*enumerate(call.args)]
    given += [(keyword.arg or "", keyword.value) for keyword in call.keywords]
    for place, argument in given:
        node = argument.value if isinstance(argument, ast.Starred) else argument
        if isinstance(node, ast.Constant):
            continue
        for value in values_of.listed(study.tracer.evaluate(node, made.module, made.frame)):
            takes = is_container or (cls is not None and _calls(cls, place, study))
            if _is_module(value, study) or (takes and isinstance(value, Unknown)):
                _collect(frozenset({value}), study, result, seen)


def _calls(cls: Class, place: int | str, study: Study) -> bool:
    """Whether a class keeps what ``__init__`` is given at a place, and calls it."""
    known = study.cache(_called_places)
    if (cls.node, place) not in known:
        known[cls.node, place] = _finds_call(cls, place)
    return known[cls.node, place]


def _called_places(study: Study) -> dict[tuple[ast.AST, int | str], bool]:
    return {}


def _finds_call(cls: Class, place: int | str) -> bool:
    for init in (m for m in cls.node.body if isinstance(m, ast.FunctionDef)):
        if init.name != "__init__":
            continue
        names = [a.arg for a in (*init.args.posonlyargs, *init.args.args)][1:]
        name = place if isinstance(place, str) else "".join(names[place : place + 1])
        kept = {
            access_path(target)
            for node in walk(init)
            if isinstance(node, ast.Assign) and access_path(node.value) == name
            for target in node.targets
        }
        called = {access_path(c.func) for c in walk(cls.node) if isinstance(c, ast.Call)}
        return bool((kept & called) - {None, name})
    return False


def _is_module_class(cls: Class, study: Study) -> bool:
    return any(base.startswith("torch.nn.") for base in study.tracer.external_bases(cls))


def _is_module(value: Value, study: Study) -> bool:
    """Whether a value is surely a module: of a class of the project's, or of a library's."""
    match value:
        case Made(callee=Class() as cls):
            return _is_module_class(cls, study)
        case Made(node=ast.Call(), made_by=name) if name:
            is_known = _holds_first(name) or LANGUAGE_MODELS.search(name) is not None
            return is_known or is_librarys_module(name)
    return False


def _holds_first(name: str) -> bool:
    """Whether what a call of that name gives has all of its first argument."""
    return WRAPPERS.match(name) is not None or fsdp1.canonical(name) in {"wrap", fsdp1.FSDP}


def _class(cls: Class, study: Study, result: Contents, seen: set[ast.AST]) -> None:
    if cls.node in seen:
        return
    seen.add(cls.node)
    result.classes.append(cls)
    result.externals |= study.tracer.external_bases(cls)
    for related in study.tracer.family(cls):
        if related.node is not cls.node and related.node not in seen:
            _class(related, study, result, seen)
    for name in _given_names(cls.node):
        for value in study.tracer.attribute(cls, name, cls.node, cls.module):
            if _is_module(value, study):
                _collect(frozenset({value}), study, result, seen)
    _body(cls.node, cls.module, study, result, seen)


def _given_names(cls: ast.ClassDef) -> list[str]:
    """What a class takes out of ``self`` and others give to it: ``net.adapter = Adapter()``."""
    own = {node.name for node in cls.body if isinstance(node, DEFINITIONS)}
    asked: dict[str, None] = {}
    for node in walk(cls):
        match node:
            case ast.Assign(targets=targets, value=ast.expr() as value) if not is_none(value):
                own |= {t.attr for t in targets if isinstance(t, ast.Attribute)}
            case ast.Attribute(value=ast.Name(id="self"), attr=attr, ctx=ast.Load()):
                asked[attr] = None
    return [name for name in asked if name not in own]


def _body(
    node: ast.AST, module: Module, study: Study, result: Contents, seen: set[ast.AST]
) -> None:
    for call in module.table.calls_in(node):
        _callee(call, module, study, result, seen)


def _callee(
    call: ast.Call, module: Module, study: Study, result: Contents, seen: set[ast.AST]
) -> None:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "register_buffer":
        result.buffers.append(call)
    for value in study.values(call.func, module):
        match value:
            case Class():
                _class(value, study, result, seen)
                _given(call, Value(call, module), value, study, result, seen)
            case External(name=name) if name.split(".", maxsplit=1)[0] != "builtins":
                result.externals.add(name)
                if CONTAINER.match(name):
                    _given(call, Value(call, module), None, study, result, seen)
            case Function(node=function) if function not in seen:
                seen.add(function)
                _body(function, value.module, study, result, seen)
            case _:
                unknown = not isinstance(value, (External, Function, Class))
                if unknown and isinstance(call.func, ast.Name) and _is_kept(call, module):
                    result.complete = False


def _is_kept(call: ast.Call, module: Module) -> bool:
    """Whether what a call makes is stored in an attribute, as submodules are."""
    statement = module.table.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in targets)


def may_contain(node: ast.expr, module: Module, layer: str, study: Study) -> bool:
    """Whether a model may contain layers whose class name holds ``layer``; True when unsure."""
    found = contents(node, module, study)
    if any(layer in name for name in found.externals):
        return True
    return _is_from_outside(found) or not found.complete


def _is_from_outside(found: Contents) -> bool:
    """Whether something of a library whose layers are not known is in a model."""
    return not HARMLESS_ROOTS.issuperset(n.split(".", maxsplit=1)[0] for n in found.externals)


def may_have_batch_norm(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a model may have BatchNorm layers.

    Documents show what users give a package that shards their models. Where not all that makes it
    can be followed, it may if some file speaks of them, or of a library whose models have them:
    without either, what FSDP1 does for them is not written. A function that shards what others
    give it is no part of a program in sight: there any file of those given counts.
    """
    if _is_of_users(node, module, study) and SHOWN.search(study.project.library.documented):
        return True
    found = contents(node, module, study)
    without = (LANGUAGE_MODELS, WITHOUT_NORMS)
    others = {name for name in found.externals if not any(w.search(name) for w in without)}
    found = replace(found, externals=others)
    from_outside = _is_from_outside(found)
    if not (from_outside or any("BatchNorm" in name for name in others)) and found.complete:
        return False
    spoken_of = study.project.mentions("BatchNorm", *CONVOLUTIONAL)
    if found.from_callers:
        spoken_of = spoken_of or study.project.library.anywhere("BatchNorm", *CONVOLUTIONAL)
    return from_outside or spoken_of or _has_vision_models(study)


def _is_of_users(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a package that others may install shards what a function of it is given."""
    if not study.published or not module.package or module.is_test:
        return False
    function = enclosing_function(module, node)
    arguments = getattr(function, "args", None)
    names = {a.arg for a in arguments.args} if isinstance(arguments, ast.arguments) else set()
    return not names.isdisjoint(names_in(node))


def _has_vision_models(study: Study) -> bool:
    """Whether some file takes models or layers, not only images, from torchvision."""
    if VISION.search(study.project.library.joined_text):
        return True
    layers = ("torchvision.models", "torchvision.ops")
    return any(
        any(binding.qualified.startswith(layers) for binding in table.imports)
        or any(ast.unparse(a) in layers for a in table.attributes_by_name.of(["models", "ops"]))
        for table in (m.table for m in study.project.modules if m.mentions("torchvision"))
    )


def may_have_float_buffers(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a model may have floating-point buffers, saved or not; True when unsure."""
    found = contents(node, module, study)
    if _is_from_outside(found) or not found.complete or found.from_library:
        return True
    suspects = (*BUFFERED_LAYERS, ".load", ".Buffer")
    if any(part in name for name in found.externals for part in suspects):
        return True
    # Those of the model, whose files need not be among those that are read for FSDP1; and others,
    # which somebody may give to it.
    elsewhere = (call for call, _ in study.tracer.calls_named("register_buffer"))
    return not all(map(_is_whole, (*found.buffers, *elsewhere)))


def _is_whole(call: ast.Call) -> bool:
    """Whether a buffer is registered with a dtype that is not floating-point, in sight."""
    value = call.args[1] if len(call.args) > 1 else None
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in {"bool", "long", "int"}:
        return True
    dtypes = [ast.unparse(k.value) for k in value.keywords if k.arg == "dtype"]
    return bool(dtypes) and dtypes[0] in WHOLE
