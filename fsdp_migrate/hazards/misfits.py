"""Calls into FSDP2, DTensor and DCP that cannot bind: they raise a ``TypeError`` when they run."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

from packaging.version import Version

from fsdp_migrate import signatures
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.hazards import right_forms as forms
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import AddKeyword, Code, Edit, RemoveArgument, RenameKeyword, code
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.target import DEFAULT_TARGET
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

PACKAGE = "torch.distributed."
OLD = "torch.distributed._composable.fully_shard"  # FSDP1's, by another interface
CHECKPOINT = "torch.distributed.checkpoint"
STATE_DICT = f"{CHECKPOINT}.state_dict"
CAUGHT = frozenset({"TypeError", "Exception", "BaseException"})
RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})  # of tests that mean it


@dataclass(frozen=True)
class Misfit:
    """A call that no signature allows."""

    call: ast.Call
    message: str
    help: str
    edits: tuple[Edit, ...]
    is_note: bool  # a later torch allows it, or what it is called on may be something else


@dataclass
class _Draft:
    """A call on its way to its right form."""

    study: Study
    module: Module
    call: ast.Call
    positional: list[ast.expr] = field(default_factory=list)
    named: dict[str, ast.expr] = field(default_factory=dict)
    options: dict[str, Code | ast.expr] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


def hazards(code: str, study: Study, module: Module, *, states: bool) -> Iterator[Hazard]:
    """What :func:`find` gives, as the hazards of a rule."""
    for each in find(study, module, states=states):
        yield Hazard(
            *(code, module, each.call, each.message, each.help),
            edits=each.edits,
            is_note=each.is_note,
        )


def find(study: Study, module: Module, *, states: bool) -> Iterator[Misfit]:
    """The calls of a file that do not fit: those of DCP and its state dicts, or all others."""
    table = signatures.load()
    names = {*table.last_names, *forms.DCP} if states else {*table.last_names, *table.by_attribute}
    named = {b.name for b in module.table.imports if b.qualified.startswith(PACKAGE)}
    for call in module.table.calls_by_name.of(names | named):
        if call in study.project.outdated or is_meant_to_fail(call, module):
            continue
        found = _function(call, module, study)
        if found is None and not states:
            found = _method(call, module, study)
        if found is None or found[0].startswith(CHECKPOINT) is not states:
            continue
        name, sure = found
        misfit = _misfit(name, call, module, study, sure=sure)
        if misfit is not None:
            yield misfit


def _function(call: ast.Call, module: Module, study: Study) -> tuple[str, bool] | None:
    """The name of a function as the tables have it."""
    found = {_canonical(name) for name in study.external(call.func, module)}
    name = next(iter(found)) if len(found) == 1 else None
    return None if name is None else (name, True)


def _canonical(name: str) -> str | None:
    """``torch.distributed.fsdp.fully_shard`` for all the places that it is imported from."""
    last = name.rpartition(".")[2]
    if not name.startswith(PACKAGE) or name.startswith(OLD):
        return None
    if last in forms.DCP:
        return f"{CHECKPOINT}.{last}" if name.startswith(CHECKPOINT) else None
    functions = (each for each in signatures.load().functions if each.startswith(PACKAGE))
    return next((each for each in functions if each.rpartition(".")[2] == last), None)


def _method(call: ast.Call, module: Module, study: Study) -> tuple[str, bool] | None:
    """The name of a method of FSDP2's models, and whether it is surely one."""
    function = call.func
    if not isinstance(function, ast.Attribute) or study.external(function, module):
        return None
    name = signatures.load().by_attribute.get(function.attr, "")
    parameters = _parameters(name, study.target) if name.startswith(PACKAGE) else None
    if parameters is None or not signatures.misfit(call, parameters):
        return None  # whatever it is called on, which takes longer to find out
    values = study.values(function.value, module)
    sharded = fully_sharded.sharded(study)
    if name.startswith("torch.distributed.fsdp.") and values and all(v in sharded for v in values):
        return name, True
    common = function.attr in forms.METHODS
    return None if common or function.attr in study.cache(_own_names) else (name, False)


def _own_names(study: Study) -> frozenset[str]:
    """The names of the functions that the project defines."""
    nodes = (node for module in study.project.modules for node in walk(module.source.tree))
    return frozenset(n.name for n in nodes if isinstance(n, FUNCTIONS) and hasattr(n, "name"))


def is_meant_to_fail(call: ast.Call, module: Module) -> bool:
    """Whether what a call raises is caught or expected there."""
    for around in module.table.ancestors(call):
        match around:
            case ast.Try(body=body, handlers=handlers) if any(map(_catches, handlers)):
                if any(call in walk(each) for each in body):
                    return True
        if isinstance(around, (ast.With, ast.AsyncWith)) and any(
            isinstance(i.context_expr, ast.Call) and last_name(i.context_expr.func) in RAISING
            for i in around.items
        ):
            return True
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for errors of this kind."""
    return handler.type is None or not names_in(handler.type).isdisjoint(CAUGHT)


def _misfit(
    name: str, call: ast.Call, module: Module, study: Study, *, sure: bool
) -> Misfit | None:
    last = name.rpartition(".")[2]
    parameters = _parameters(name, study.target)
    problem = "" if parameters is None else signatures.misfit(call, parameters)
    if parameters is None or not problem or _is_storage(name, call, module, study):
        return None
    since = _release_that_allows(name, call, study.target)
    told = f"torch {study.target}" if not since else f"torch before {since}"
    message = f"{last} in {told}: {problem}"
    if since:
        is_asked = study.target != DEFAULT_TARGET
        help_ = f"require torch>={since}, or leave it out"
        return Misfit(call, message, help_, (), is_note=not (sure and is_asked))
    draft = _Draft(study, module, call)
    help_ = _right_form(last, draft, parameters)
    fits = bool(draft.edits) and not signatures.misfit(_rebuilt(draft), parameters)
    mended = sure and fits and "**" not in draft.named
    if fits:
        help_ = f"write {ast.unparse(_rebuilt(draft))}"
    return Misfit(call, message, help_, tuple(draft.edits) if mended else (), is_note=not sure)


def _is_storage(name: str, call: ast.Call, module: Module, study: Study) -> bool:
    """Whether DCP may be given a reader or writer by position, which it takes with a warning."""
    if name.rpartition(".")[2] not in forms.DCP or len(call.args) != 2:
        return False
    place = call.args[1]
    said = study.literal(place, module)
    is_path = isinstance(place, ast.JoinedStr) or (said is not None and isinstance(said.value, str))
    if isinstance(place, ast.Call):
        is_path = not study.external(place.func, module).isdisjoint(forms.PATHS)
    return not is_path


def _parameters(name: str, target: Version) -> str | None:
    last = name.rpartition(".")[2]
    if name == f"{CHECKPOINT}.{last}":
        return forms.DCP[last]
    return signatures.load().parameters(name, target)


def _release_that_allows(name: str, call: ast.Call, target: Version) -> str:
    """The first release after the target that a call fits, or an empty text."""
    for release in signatures.load().releases:
        if Version(release) > target:
            parameters = _parameters(name, Version(release))
            if parameters is not None and not signatures.misfit(call, parameters):
                return release
    return ""


def _right_form(last: str, draft: _Draft, parameters: str) -> str:
    """Fill in what of a call is right, with the edits that make the rest right; what to write."""
    allowed = [a.arg for a in _arguments(parameters)]
    for number, argument in enumerate(draft.call.args):
        _place(last, number, argument, draft)
    for keyword in draft.call.keywords:
        if keyword.arg is None:  # what else is given is not known
            draft.named["**"] = keyword.value
        elif keyword.arg in allowed:
            draft.named[keyword.arg] = keyword.value
    for keyword in draft.call.keywords:
        if keyword.arg is not None and keyword.arg not in allowed:
            _replace(last, keyword, draft, allowed)
    if draft.options:
        _give_options(draft)
    return "; ".join(filter(None, draft.advice)) or f"it takes ({parameters.replace('=...', '')})"


def _arguments(parameters: str) -> list[ast.arg]:
    function = ast.parse(f"def f({parameters}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _place(last: str, number: int, argument: ast.expr, draft: _Draft) -> None:
    """Give an argument by name that cannot be given by position."""
    names = forms.BY_POSITION.get(last, ())
    name = names[number] if number < len(names) else ""
    if not name and number and last in {*forms.TAKE_OPTIONS, "fully_shard"}:
        name = _name_by_class(argument, draft)
    if not name or isinstance(argument, ast.Starred):
        draft.positional.append(argument)
        return
    draft.named[name] = argument
    draft.edits.append(RemoveArgument(draft.module, draft.call, argument))
    draft.edits.append(AddKeyword(draft.module, draft.call, name, code("{a}", a=argument)))


def _name_by_class(argument: ast.expr, draft: _Draft) -> str:
    """The parameter that takes objects of what an argument surely is."""
    for name, made in (
        ("options", forms.OPTIONS),
        ("mesh", "init_device_mesh"),
        ("mesh", "DeviceMesh"),
        ("mp_policy", "MixedPrecisionPolicy"),
        ("offload_policy", "CPUOffloadPolicy"),
    ):
        if _is_made_by(argument, made, draft):
            return name
    return ""


def _is_made_by(argument: ast.expr, name: str, draft: _Draft) -> bool:
    """Whether a value is what torch's function or class of this name gives, and nothing else."""
    values = draft.study.values(argument, draft.module)
    made = [v.made_by if isinstance(v, Made) else "" for v in values]
    return bool(made) and all(m.startswith(PACKAGE) and m.endswith(f".{name}") for m in made)


def _replace(last: str, keyword: ast.keyword, draft: _Draft, allowed: list[str]) -> None:
    """What is to stand in the place of an argument that there is not."""
    name, value = keyword.arg or "", keyword.value
    said = draft.study.literal(value, draft.module)
    given = None if said is None else said.value
    right = forms.RENAMED.get(last, {}).get(name, "")
    if not right and last == "fully_shard" and name in forms.POLICIES:
        policy, made = forms.POLICIES[name]
        right = policy if _is_made_by(value, made, draft) else ""
    required = [a for a in allowed[:1] if a not in draft.named and not draft.positional]
    if not right and len(draft.call.keywords) == len(required) and last in forms.ONE_SETTING:
        right = required[0]  # nothing else can be meant
    if right and right in allowed and right not in draft.named:
        draft.named[right] = value
        draft.edits.append(RenameKeyword(draft.module, keyword, draft.call, right))
        return
    option = forms.OPTION_ALIASES.get(name, name)
    if last in forms.TAKE_OPTIONS and option in forms.OPTION_FIELDS:
        draft.edits.append(RemoveArgument(draft.module, draft.call, keyword))
        draft.options[option] = value
        if option == "broadcast_from_rank0" and given is True:
            draft.options.setdefault("full_state_dict", code("True"))
        return
    if given is True and name in forms.SPARE.get(last, ()):
        draft.edits.append(RemoveArgument(draft.module, draft.call, keyword))
        return
    near = difflib.get_close_matches(name, [a for a in allowed if a not in draft.named], 1, 0.75)
    advice = forms.ADVICE.get(last, {}).get(name, f"{near[0]} may be meant" if near else "")
    draft.advice.append(f"{name}: {advice}" if advice else "")
    draft.named[name] = value  # it stays, so that nothing is mended


def _give_options(draft: _Draft) -> None:
    """``options=StateDictOptions(...)`` for what was given beside it."""
    if "options" in draft.named:
        draft.edits.clear()
        draft.advice.append("give it to StateDictOptions(...), as options")
        return
    namer = draft.study.proposal()
    name = namer.name(draft.module, STATE_DICT, forms.OPTIONS, draft.call)
    template = ", ".join(f"{option}={{{option}}}" for option in draft.options)
    new = code(f"{name}({template})", **draft.options)
    draft.edits += [*namer.edits, AddKeyword(draft.module, draft.call, "options", new)]
    parsed = ast.parse(new.preview(), mode="eval")
    draft.named["options"] = parsed.body


def _rebuilt(draft: _Draft) -> ast.Call:
    named = {None if name == "**" else name: value for name, value in draft.named.items()}
    keywords = [ast.keyword(name, value) for name, value in named.items()]
    return ast.Call(draft.call.func, draft.positional, keywords)
