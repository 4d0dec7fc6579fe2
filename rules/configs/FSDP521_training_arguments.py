"""Migrate `fsdp` and `fsdp_config` of calls of transformers' `TrainingArguments`."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import handed_mappings, handed_on, plugin_calls
from fsdp_migrate.configurations.commands import plain_values
from fsdp_migrate.configurations.frameworks import transformers
from fsdp_migrate.configurations.handed_mappings import setting
from fsdp_migrate.configurations.settings import Change, Setting, Value
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.trees import walk

NAMES = transformers.ARGUMENTS
PATHS = frozenset(
    {
        *(f"transformers.{name}" for name in NAMES[:2]),
        *(f"trl.{name}" for name in transformers.OF_TRL),
        f"sentence_transformers.{transformers.OF_OTHERS}",
        f"sentence_transformers.training_args.{transformers.OF_OTHERS}",
        "transformers.training_args.TrainingArguments",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments",
    }
)
ARGUMENTS = Construct.parse("TrainingArguments()")
OWN = frozenset({"fsdp", "bf16", "fp16"})  # arguments of the call, not keys of fsdp_config
IN_FILE = (
    "write the dictionary in the call, and run again; or, in a file of its own, version: 2 and the "
    "strategy as reshard_after_forward"
)
OF_CLASS = "it is a default of a subclass, which command lines and files may override"
LIBRARIES = ("transformers", "trl", "--fsdp")
HOLDING = (ast.Dict, ast.Call, ast.Assign, ast.List, ast.Tuple, ast.Constant, ast.JoinedStr)
MADE = "transformers is given it elsewhere, and trains FSDP1 unless the version stands there"
BY_HAND = "write fsdp and fsdp_config out in the call, and run again"


def _find(study: Study, module: Module) -> Iterator[Site]:
    for call in module.table.calls if module.mentions(*NAMES) else ():
        asks = any(k.arg in {"fsdp", "fsdp_config"} for k in call.keywords)
        if (module.path, call.lineno) in study.project.library.with_files:
            continue  # decided with the file that it names
        if not asks or not study.external(call.func, module) & PATHS:
            continue
        if transformers.migrate(_read(call, module, study).settings):
            yield Site(ARGUMENTS, module, call, call.func)
    for node in module.table.scopes if module.mentions(*NAMES) else ():
        if isinstance(node, ast.ClassDef) and transformers.migrate(_fields(node, module, study)):
            yield Site(ARGUMENTS, module, node, node)
    for handed in _handed(module, study):
        yield Site(ARGUMENTS, module, handed, handed)


def _handed(module: Module, study: Study) -> dict[ast.expr, dict[str, Setting]]:
    """What stands in a mapping or an attribute, and not in a call of the arguments."""
    is_library = not handed_on.READERS.isdisjoint(module.name.split(".")[:-1])
    if is_library or not module.mentions("fsdp") or not study.cache(_is_used):
        return {}
    found: dict[ast.expr, dict[str, Setting]] = {}
    texts: set[ast.AST] = set()
    for node in walk(module.source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            texts.add(node.value)  # a text about it
        elif isinstance(node, ast.JoinedStr):
            texts.update(node.values)
        if not isinstance(node, HOLDING) or node in texts:
            continue
        settings = handed_mappings.of_transformers(node, module, study)
        if not settings or not transformers.migrate(settings):
            continue
        if not isinstance(node, ast.Call) or not study.external(node.func, module) & PATHS:
            found[node.targets[0] if isinstance(node, ast.Assign) else node] = settings
    return found


def _is_used(study: Study) -> bool:
    return any(module.mentions(*LIBRARIES) for module in study.project.modules)


RULE = Rule(
    code="FSDP521",
    name="training_arguments",
    handles=(str(ARGUMENTS),),
    finders=(Finder(261, _find, always=True),),
)


@dataclass(eq=False)
class Arguments:
    """The settings of one call, and the dictionary that ``fsdp_config`` is."""

    call: ast.Call
    module: Module
    settings: dict[str, Setting] = field(default_factory=dict)
    config: ast.Dict | None = None
    file: str = ""  # the one that fsdp_config names, where it was read

    def keyword(self, name: str) -> ast.keyword | None:
        return next((k for k in self.call.keywords if k.arg == name), None)


def _read(call: ast.Call, module: Module, study: Study) -> Arguments:
    found = Arguments(call, module)
    for name in OWN:
        keyword = found.keyword(name)
        if keyword is not None:
            found.settings[name] = setting(name, keyword.value, module, study)
    if "fsdp" not in found.settings:
        found.settings["fsdp"] = Setting("fsdp", None)  # FSDP is off
        if any(k.arg is None for k in call.keywords):
            found.settings["fsdp"] = Setting("fsdp", None, "it may come from **")
    given = found.keyword("fsdp_config")
    if given is None:
        if any(k.arg is None for k in call.keywords):
            found.settings["fsdp_config"] = Setting("fsdp_config", None, "it may come from **")
        return found
    assigned = plugin_calls.assigned_for(given.value, module, study)
    config = assigned.value if assigned is not None else given.value
    written = config.keys if isinstance(config, ast.Dict) else []
    keys = [key.value for key in written if isinstance(key, ast.Constant)]
    named = study.literal(config, module)
    read = _in_file(named.value, module, study) if named is not None else None
    if read is not None:
        found.file = str(named.value) if named is not None else ""
        found.settings |= {key: Setting(key, value) for key, value in read.items()}
        return found
    if not isinstance(config, ast.Dict) or len(keys) != len(config.keys):
        if not isinstance(config, ast.Constant) or config.value is not None:
            unknown = f"it is {ast.unparse(config)}"
            found.settings["fsdp_config"] = Setting("fsdp_config", None, unknown)
        return found
    found.config = config
    for key, value in zip(keys, config.values, strict=True):
        found.settings[str(key)] = setting(str(key), value, module, study)
    return found


def _in_file(name: object, module: Module, study: Study) -> dict[str, Value] | None:
    """What a JSON file of the project holds, that a program names from its own directory or from
    the top; None where there is no such file, or more in it than keys with plain values."""
    top = study.project.library.top
    if top is None or not isinstance(name, str) or not name.endswith(".json"):
        return None
    for directory in (module.path.parent, top):
        path = (directory / name).resolve()
        if not path.is_relative_to(top.resolve()) or not path.is_file():
            continue
        try:
            read = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        return plain_values(read)
    return None


def _fields(cls: ast.ClassDef, module: Module, study: Study) -> dict[str, Setting]:
    """What a subclass has for a default, which command lines and files may override."""
    found: dict[str, Setting] = {}
    if not any(study.external(base, module) & PATHS for base in cls.bases):
        return found
    for statement in cls.body:
        if not isinstance(statement, ast.AnnAssign) or statement.value is None:
            continue
        name = statement.target.id if isinstance(statement.target, ast.Name) else ""
        value = _default(statement.value)
        if name in OWN:
            found[name] = setting(name, value, module, study)
        elif name == "fsdp_config" and isinstance(value, ast.Dict):
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    found[str(key.value)] = setting(str(key.value), inner, module, study)
    return found if "fsdp" in found else {}


def _default(node: ast.expr) -> ast.expr:
    """What a field of a dataclass is by default."""
    for keyword in node.keywords if isinstance(node, ast.Call) else ():
        if keyword.arg == "default":
            return keyword.value
        if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
            return keyword.value.body
    return node


def _of_subclass(site: Site, cls: ast.ClassDef, study: Study) -> Decision:
    changes = transformers.migrate(
        _fields(cls, site.module, study),
        study.project.library.pinned("transformers", site.module.path),
    )
    for change in changes:
        if change.outcome is Outcome.LEFT:
            return study.left(site, RULE.code, change.message, change.help)
    wanted = [c.new for c in changes if c.new is not None and c.new[0] not in OWN]
    written = ", ".join(f"{name}: {json.dumps(value)}" for name, value in wanted)
    return study.left(site, RULE.code, OF_CLASS, f"write {written} in its default of fsdp_config")


def _handed_on(site: Site, settings: dict[str, Setting], study: Study) -> Decision:
    """What becomes arguments elsewhere is left, with what to write there."""
    changes = transformers.migrate(
        settings, study.project.library.pinned("transformers", site.module.path)
    )
    for change in changes:
        if change.outcome is Outcome.LEFT:
            return study.left(site, RULE.code, change.message, change.help)
    wanted = [c.new for c in changes if c.new is not None and c.new[0] not in OWN]
    written = ", ".join(f"{name}: {json.dumps(value)}" for name, value in wanted)
    gone = ", ".join(c.old for c in changes if c.new is None)
    without = f", without {gone}" if gone else ""
    return study.left(site, RULE.code, MADE, f"write {written} in fsdp_config{without}")


def decide(site: Site, study: Study) -> Decision:
    if isinstance(site.node, ast.ClassDef):
        return _of_subclass(site, site.node, study)
    for node, settings in _handed(site.module, study).items():
        if node is site.node:
            return _handed_on(site, settings, study)
    found = _read(site.call, site.module, study)
    installed = study.project.library.pinned("transformers", site.module.path)
    reason = plugin_calls.of_version_1(study)
    if reason:
        return study.left(site, RULE.code, reason, "write version 2 in fsdp_config by hand")
    changes = transformers.migrate(found.settings, installed)
    for change in changes:
        if change.outcome is Outcome.LEFT:
            named = change.old == "fsdp_config"
            help_ = change.help or (IN_FILE if named else BY_HAND)
            return study.left(site, RULE.code, change.message, help_)
    if found.file:
        wanted = [c.new for c in changes if c.new is not None and c.new[0] not in OWN]
        written = ", ".join(f"{name}: {json.dumps(value)}" for name, value in wanted)
        reason = f"what is to change stands in {found.file}, which fsdp_config names"
        return study.left(site, RULE.code, reason, f"write {written} there" if wanted else IN_FILE)
    proposal = study.proposal()
    if found.config is None and found.keyword("fsdp_config") is not None:
        return study.left(site, RULE.code, "fsdp_config is None here", BY_HAND)
    new = [each for each in (_write(c, found, proposal) for c in changes) if each is not None]
    if new:
        items = join(", ", [code("{k}: {v}", k=_text(k), v=v) for k, v in new])
        proposal.add_keyword(site.module, site.call, "fsdp_config", code("{{{i}}}", i=items))
    reviews = [sentences(c.message, c.help) for c in changes if c.outcome is Outcome.REVIEW]
    plain = (c.message for c in changes if c.new is not None and c.outcome is Outcome.REWRITTEN)
    said = "; ".join(dict.fromkeys(plain))
    review = " ".join(dict.fromkeys(reviews))
    return study.rewritten(site, RULE.code, said or "for version 2", proposal, review=review)


def _write(change: Change, found: Arguments, proposal: Proposal) -> tuple[str, Code] | None:
    """Write one change; what goes into an ``fsdp_config`` that is not there yet is given back."""
    module, new = found.module, change.new
    keyword = found.keyword(change.old) if change.old in OWN else None
    if new is not None and change.old == new[0] and found.settings[new[0]].value == new[1]:
        return None
    if keyword is not None:
        if new is None:
            proposal.remove_argument(module, found.call, keyword)
            return None
        if new[0] == change.old:
            proposal.replace(module, keyword.value, _value(new[1]))
            return None
    elif change.old and found.config is not None:
        keys = [k.value if isinstance(k, ast.Constant) else None for k in found.config.keys]
        value = found.config.values[keys.index(change.old)]
        if new is not None and new[0] == change.old:
            proposal.replace(module, value, _value(new[1]))
            return None
        proposal.remove_item(module, found.config, value)
    if new is None:
        return None
    if found.config is None:
        return new[0], _value(new[1])
    proposal.add_item(module, found.config, new[0], _value(new[1]))
    return None


def _value(value: Value) -> Code:
    if isinstance(value, tuple):
        return code("[{items}]", items=join(", ", [_value(each) for each in value]))
    return code("{v}", v=_text(value) if isinstance(value, str) else repr(value))


def _text(value: str) -> str:
    return f'"{value}"'
