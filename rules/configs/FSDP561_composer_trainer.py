"""Migrate `parallelism_config` of calls of composer's `Trainer`."""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import plugin_calls
from fsdp_migrate.configurations.frameworks import composer
from fsdp_migrate.configurations.settings import Change, Setting, Settings, Value
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Finder, Rule

TRAINER = Construct.parse("composer.Trainer()")
PATHS = frozenset(
    {"composer.Trainer", "composer.trainer.Trainer", "composer.trainer.trainer.Trainer"}
)
OLD, NEW = "fsdp_config", "parallelism_config"
CONFIG = "FSDP2Config"
OLD_ARGUMENT = "fsdp_config is an argument of composer before 0.26, which has no version 2"
RAISE = "raise mosaicml to 0.31 or later, and write parallelism_config={'fsdp': FSDP2Config(...)}"
FROM_ELSEWHERE = "FSDP_VERSION=2 in the environment of the program makes version 2 of a dictionary"
BY_HAND = "write FSDP2Config(...) from composer.utils in its place"


def _find(study: Study, module: Module) -> Iterator[Site]:
    for call in module.table.calls if module.mentions("Trainer") else ():
        names = {k.arg for k in call.keywords}
        if not names & {OLD, NEW} or not study.external(call.func, module) & PATHS:
            continue
        if _is_fsdp1s(call, module, study):
            yield Site(TRAINER, module, call, call.func)


RULE = Rule(
    code="FSDP561",
    name="composer_trainer",
    handles=(str(TRAINER),),
    finders=(Finder(263, _find, always=True),),
)


def _is_fsdp1s(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call may give the Trainer FSDP1."""
    old = _given(call, OLD, module, study)
    if old is not None:
        return not _is_none(old)
    config = _config(call, module, study)
    if config is None or _is_none(config):
        return False
    made = config.func if isinstance(config, ast.Call) else None
    return made is None or not any(q.endswith(CONFIG) for q in study.external(made, module))


def _given(call: ast.Call, name: str, module: Module, study: Study) -> ast.expr | None:
    """What makes an argument: in the call, or in a variable that the call alone reads."""
    value = next((k.value for k in call.keywords if k.arg == name), None)
    return None if value is None else _made(value, module, study)


def _made(value: ast.expr, module: Module, study: Study) -> ast.expr:
    assigned = plugin_calls.assigned_for(value, module, study)
    return value if assigned is None else assigned.value


def _config(call: ast.Call, module: Module, study: Study) -> ast.expr | None:
    """The ``fsdp`` of ``parallelism_config``, or the whole where that is not written out."""
    whole = _given(call, NEW, module, study)
    if not isinstance(whole, ast.Dict):
        return whole
    for key, value in zip(whole.keys, whole.values, strict=True):
        if key is None:
            return whole
        if isinstance(key, ast.Constant) and key.value == "fsdp":
            return _made(value, module, study)
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def decide(site: Site, study: Study) -> Decision:
    call, module = site.call, site.module
    installed = study.project.library.pinned("mosaicml", module.path)
    if _given(call, OLD, module, study) is not None:
        return study.left(site, RULE.code, OLD_ARGUMENT, RAISE)
    if installed and installed < composer.HAS_VERSION_2:
        return study.left(site, RULE.code, composer.TOO_OLD, composer.RAISE)
    config = _config(call, module, study)
    assert config is not None
    settings = _settings(config, module, study)
    if settings is None:
        reason = f"its configuration is {ast.unparse(config)}, which is made elsewhere"
        return study.left(site, RULE.code, reason, f"{FROM_ELSEWHERE}; or {BY_HAND}")
    reason = plugin_calls.of_version_1(study)
    if reason:
        return study.left(site, RULE.code, reason, BY_HAND)
    changes = composer.keys(settings, switch=False) if composer.RESHARD not in settings else []
    for change in changes:
        if change.outcome is Outcome.LEFT:
            return study.left(site, RULE.code, change.message, change.help)
    assert isinstance(config, ast.Dict)
    proposal = study.proposal()
    name = proposal.name(module, "composer.utils", CONFIG, config)
    arguments = [code("{k}={v}", k=k, v=v) for k, v in _arguments(config, changes)]
    proposal.replace(module, config, code("{n}({a})", n=name, a=join(", ", arguments)))
    said = "; ".join(dict.fromkeys(c.message for c in changes if c.outcome is Outcome.REWRITTEN))
    reviews = [sentences(c.message, c.help) for c in changes if c.outcome is Outcome.REVIEW]
    review = " ".join(dict.fromkeys(reviews))
    return study.rewritten(site, RULE.code, said or "for version 2", proposal, review=review)


def _settings(config: ast.expr, module: Module, study: Study) -> Settings | None:
    """The entries of a dictionary; None where they are not written out."""
    if not isinstance(config, ast.Dict):
        return None
    found = {}
    for key, value in zip(config.keys, config.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        known = study.literal(value, module)
        plain = known is not None and isinstance(known.value, str | bool | int | float | None)
        unknown = "" if plain else f"it is {ast.unparse(value)}"
        given = known.value if known is not None and plain else None
        found[key.value] = Setting(key.value, given, unknown)  # type: ignore[arg-type]
    return found


def _arguments(config: ast.Dict, changes: list[Change]) -> Iterator[tuple[str, Code]]:
    """The arguments of ``FSDP2Config``: what changed where it stood, then what is new."""
    by_old = {change.old: change for change in changes if change.old}
    for key, value in zip(config.keys, config.values, strict=True):
        assert isinstance(key, ast.Constant)
        name = str(key.value)
        change = by_old.get(name)
        if change is not None and change.new is not None and change.new[0] != name:
            yield change.new[0], _value(change.new[1])
        elif name in composer.KEPT:
            yield name, code("{v}", v=value)
    for change in changes:
        if not change.old and change.new is not None:
            yield change.new[0], _value(change.new[1])


def _value(value: Value) -> Code:
    return code("{v}", v=f'"{value}"' if isinstance(value, str) else repr(value))
