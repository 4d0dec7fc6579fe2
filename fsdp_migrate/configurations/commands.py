"""Blocks of shell scripts and their like: flags of commands, and variables.

``accelerate launch --fsdp_x v`` and ``FSDP_X=v`` are accelerate's, what stands behind the script is
the script's own: transformers' if it is ``--fsdp full_shard``. verl has hydra's
``actor_rollout_ref.actor.strategy=fsdp``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fsdp_migrate.configurations import bases
from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.comments import remarks
from fsdp_migrate.configurations.formats import shell
from fsdp_migrate.configurations.formats.shell import Kind, Script, Statement, Word
from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.lightning_files import OF_TRAINER, is_of_lightning
from fsdp_migrate.configurations.recognise import (
    ACCELERATE,
    ELSEWHERE,
    LIGHTNING,
    TRANSFORMERS,
    VERL,
)
from fsdp_migrate.configurations.settings import Setting, Value
from fsdp_migrate.configurations.variables import OF_ACCELERATE, VARIABLES, setting_of
from fsdp_migrate.configurations.words import BESIDE, Place, Words, counted

OF_TRL = "trl's own file fsdp1 says 1, and fsdp2 beside it says 2"
_FLAGS = {"use_fsdp", "use_parallelism_config"}  # that have no value
_OTHERS = {"num_machines", "num_processes", "mixed_precision"}
_TRANSFORMERS = {
    "fsdp", "fsdp_config", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params",
    *BESIDE,
}  # fmt: skip
_OPTIONS = {
    "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap",
    "offload",
}  # fmt: skip
_MAY_HAVE = re.compile(
    r"accelerate|FSDP_|--fsdp|fsdp_config|strategy=|trainer\.strategy|(?:critic\.fsdp|engine)\.\w"
)
_NAMED = re.compile(r"(?:--|\+*)trainer\.(\w+)(?:=|$)")
_OF_TRAINER = re.compile(r"(?:--|\+*)trainer\.(strategy|devices|num_nodes|precision)(=|$)")
_OVERRIDE = re.compile(
    r"[+~]{0,2}((?:\w+\.)+(?:strategy|fsdp_config\.[\w.]+)|critic\.fsdp\.[\w.]+|engine\.[\w.]+)="
)
_IN_TEXT = re.compile(
    r"--(?:use_fsdp|fsdp_(?:version|sharding_strategy|auto_wrap_policy|backward_prefetch"
    r"|offload_params|transformer_layer_cls_to_wrap|state_dict_type|use_orig_params|sync_module_states))\b"
    r"|^[ \t]*fsdp_(?:sharding_strategy|auto_wrap_policy|backward_prefetch\w*|state_dict_type) *:",
    re.MULTILINE,
)
_GIVEN = re.compile(  # to what is started by other ways than those that are followed
    r"(?<![\w-])(?:env|ENV|export|-e|--env)[ \t]+(?:\w+=\S*[ \t]+)*"
    r"FSDP_(?:SHARDING_STRATEGY|AUTO_WRAP_POLICY|BACKWARD_PREFETCH|USE_ORIG_PARAMS"
    r"|STATE_DICT_TYPE|SYNC_MODULE_STATES)[ =]"
)
_OPTIONS_IN_TEXT = re.compile(
    r"--fsdp[ =]+\\?[\"'](?:full_shard|shard_grad_op|no_shard|hybrid_shard)\b"
)


def blocks(file: File) -> list[Block]:
    if _MAY_HAVE.search(file.text.text) is None:
        return []
    script = shell.read(file.text, file.path)
    file.remarks = remarks(file.text, _words(script))
    found = [*_commands(file, script), *_environment(file, script)]
    for block in _in_texts(file, script, found):
        line = file.text.line_at(block.head.start)
        for other in found:
            other.reason = other.reason or f"more of it may stand in the text of line {line}"
        found.append(block)
    known = counted(script)
    for block in found:
        block.known = known
        if block.base is not None and "$" in block.base[0]:
            block.base = bases.filled_in(*block.base, block, script)
    return list(found)


def _words(script: Script) -> Iterator[Span]:
    for statement in script.statements:
        for word in statement.words:
            yield Span(word.start, word.end)


# -- flags ----------------------------------------------------------------------------------------


def _commands(file: File, script: Script) -> Iterator[Words]:
    arrays = {
        f"${{{each.name}[@]}}": block
        for each in script.statements
        if each.kind is Kind.ARRAY
        for block in _flags(file, each, ACCELERATE, 0, len(each.words))
    }
    used: set[Words] = set()
    alone: set[Words] = set()  # arrays that some command has all its settings from
    for statement in script.statements:
        if statement.kind is not Kind.COMMAND:
            continue
        first, script_at = _launch(statement) + 1, _script(statement)
        if first:
            joined = statement.joined()
            beside = [block for name, block in arrays.items() if name in joined]
            own = list(_flags(file, statement, ACCELERATE, first, script_at))
            for block in own:
                block.beside = beside
            if beside and not own:
                beside[-1].beside = beside[:-1]
                alone.add(beside[-1])
            used.update(beside)
            yield from own
        if script_at < len(statement.words):
            yield from _flags(file, statement, TRANSFORMERS, script_at, len(statement.words))
        yield from _overrides(file, statement)
        yield from _of_lightning(file, statement)
        yield from _of_trl(file, statement)
    for block in (each for each in arrays.values() if each in used):
        block.is_base = block not in alone
        yield block


def _launch(statement: Statement) -> int:
    """The number of the word ``launch`` of ``accelerate launch``; -1 without."""
    values = [word.value for word in statement.words]
    for number, value in enumerate(values):
        if value == "launch" and number and values[number - 1].rpartition("/")[2] == "accelerate":
            return number
        if value in {"accelerate.commands.launch", "accelerate-launch"}:
            return number
    return -1


def _script(statement: Statement) -> int:
    """The number of the word that names the program whose flags follow.

    Without a launcher whose own flags must be told from them it is the first word: torchrun,
    python and other starters have no flags of these names.
    """
    launch = _launch(statement)
    if launch < 0:
        return 1
    for number, word in enumerate(statement.words[launch + 1 :], launch + 1):
        if word.value.endswith(".py") or word.value in {"-m", "--module"}:
            return number
    return len(statement.words)


def _flags(file: File, statement: Statement, code: str, begin: int, end: int) -> Iterator[Words]:
    block = Words(code, file, statement.span, statement=statement, begin=begin, end=end)
    number = begin
    words = statement.words
    while number < end:
        word = words[number]
        name, equals, value = word.value.partition("=")
        last = number
        if name.startswith("--") and name[2:].replace("-", "_").isidentifier():
            full = name[2:].replace("-", "_")
            read: Word | None = None
            if full in _FLAGS:
                setting = Setting(full, None)
            elif equals:
                setting = Setting(full, value, word.unknown)
            elif number + 1 < end and not words[number + 1].value.startswith("--"):
                last, read = number + 1, words[number + 1]
                setting = Setting(full, read.value, read.unknown)
            else:
                alone = True if code == TRANSFORMERS and full == "fsdp" else None
                setting = Setting(full, alone)
            if full == "config_file" and code == ACCELERATE:
                block.base = (str(setting.value), setting.unknown)
            elif _is_meant(full, code):
                block.take(setting, Place(number, last, word, read, name[2:], equals))
        number = last + 1
    if code == TRANSFORMERS:
        path = block.settings.get("fsdp_config")
        if not _is_of_transformers(block):
            return
        if path is not None and not str(path.value).lstrip().startswith("{"):
            block.base = (str(path.value), path.unknown)
            block.is_sure = block.settings["fsdp"].value is not True
            block.forget("fsdp_config")
        elif path is not None:
            values = _inline(path)
            if values is None:
                block.reason = "fsdp_config: it is written out as JSON that is not plain"
                block.forget("fsdp_config")
            else:
                block.take_inline(values)
    if any("fsdp" in name for name in block.settings):
        block.head = block.span(next(n for n in block.settings if "fsdp" in n))
        yield block


def _inline(setting: Setting) -> dict[str, Value] | None:
    """The values of an ``fsdp_config`` that is JSON, if it has nothing but plain ones."""
    try:
        values = None if setting.unknown else json.loads(str(setting.value))
    except ValueError:
        return None
    return plain_values(values)


def plain_values(values: object) -> dict[str, Value] | None:
    """A mapping of keys to plain values and lists of them, lists as tuples; None for another."""
    if not isinstance(values, dict):
        return None
    found: dict[str, Value] = {}
    for name, value in values.items():
        each = tuple(value) if isinstance(value, list) else (value,)
        if not all(one is None or isinstance(one, str | int | float) for one in each):
            return None
        found[name] = each if isinstance(value, list) else value
    return found


def _is_meant(name: str, code: str) -> bool:
    if code == TRANSFORMERS:
        return name in _TRANSFORMERS
    return name.startswith(("fsdp_", "parallelism_config_")) or name in _FLAGS | _OTHERS


def _is_of_transformers(block: Words) -> bool:
    fsdp = block.settings.get("fsdp")
    if fsdp is None or fsdp.value is None:
        return False
    if fsdp.unknown:
        return any(name != "fsdp" for name in block.settings if name not in BESIDE)
    if fsdp.value is True:  # of many a program; the others are transformers' alone
        return any(name != "fsdp" and name not in BESIDE for name in block.settings)
    words = str(fsdp.value).replace(",", " ").split()
    return bool(words) and set(words) <= _OPTIONS


def _of_trl(file: File, statement: Statement) -> Iterator[Words]:
    """trl brings configurations of accelerate: ``trl sft --accelerate_config fsdp1``."""
    for name, value in pairwise(statement.words):
        if (name.value, value.value) == ("--accelerate_config", "fsdp1"):
            span = Span(name.start, value.end)
            block = Words(ACCELERATE, file, span, statement=statement, end=len(statement.words))
            block.settings["fsdp_version"] = Setting("fsdp_version", None, OF_TRL)
            block.spans["fsdp_version"] = span
            yield block


def _of_lightning(file: File, statement: Statement) -> Iterator[Words]:
    """LightningCLI's ``--trainer.strategy fsdp``, and hydra's ``trainer.strategy=fsdp`` beside
    something else that Lightning's ``Trainer`` takes."""
    named = {m[1] for w in statement.words if (m := _NAMED.match(w.value)) is not None}
    if not named & OF_TRAINER and "--trainer." not in statement.joined():
        return
    block = Words(LIGHTNING, file, statement.span, statement=statement, end=len(statement.words))
    for number, word in enumerate(statement.words):
        match = _OF_TRAINER.match(word.value)
        if match is None:
            continue
        read = None if match[2] else statement.words[number + 1 : number + 2]
        value = word.value[match.end() :] if read is None else "".join(w.value for w in read)
        place = Place(number, number, word, read[0] if read else None, match[1], match[2])
        known = int(value) if value.isdecimal() else value
        block.take(Setting(match[1], known, (read[0] if read else word).unknown), place)
    strategy = block.settings.get("strategy")
    if strategy is not None and is_of_lightning(str(strategy.value)):
        block.head = block.span("strategy")
        yield block


def _overrides(file: File, statement: Statement) -> Iterator[Words]:
    if "verl" not in statement.joined():
        return
    block = Words(VERL, file, statement.span, statement=statement, end=len(statement.words))
    for number, word in enumerate(statement.words):
        match = _OVERRIDE.match(word.value)
        if match is not None:
            value = word.value[match.end() :]
            place = Place(number, number, word, None, word.value[: match.end() - 1], "=")
            block.take(Setting(match[1], value, word.unknown), place)
    if block.settings:
        block.head = block.span(next(iter(block.settings)))
        yield block


# -- variables ------------------------------------------------------------------------------------


def _environment(file: File, script: Script) -> Iterator[Words]:
    """The variables of a file, which are one run's; and those before single commands."""
    whole: list[Words] = []
    for statement in script.statements:
        if statement.kind is Kind.COMMAND and statement.assigned:
            end = statement.assigned
        elif statement.kind is Kind.VARIABLES and statement.exported:
            end = len(statement.words)
        else:
            continue
        block = Words(ACCELERATE, file, statement.span, statement=statement, end=end)
        for number, word in enumerate(statement.words[:end]):
            name, _, value = word.value.partition("=")
            if OF_ACCELERATE.fullmatch(name) is not None:
                place = Place(number, number, word, None, name, "=", is_variable=True)
                block.take(Setting(setting_of(name), value, word.unknown), place)
                block.names.add(name)
        if block.settings:
            block.head = block.span(next(iter(block.settings)))
            whole.append(block)
    if any(VARIABLES.fullmatch(name) for block in whole for name in block.names):
        shared = [b for b in whole if b.statement.kind is Kind.VARIABLES]
        for name in {n for b in shared for n in b.settings}:
            twice = [b for b in shared if name in b.settings]
            if len(twice) > 1:
                twice[0].reason = f"{name} is set in several places of this file"
        for block in whole:
            block.beside = shared if block not in shared else shared[:-1]
            block.is_base = block in shared[:-1] or (block in shared and len(whole) > len(shared))
        yield from whole


def _in_texts(file: File, script: Script, known: Sequence[Block]) -> Iterator[Words]:
    """What accelerate would read, in texts that are not followed: it is said once in a file."""
    spans = [*script.comments, *(s for b in known for s in b.spans.values())]
    flags = _IN_TEXT.finditer(file.text.text) if "accelerate" in file.text.text else iter(())
    given = _GIVEN.finditer(file.text.text)
    of_transformers = _OPTIONS_IN_TEXT.finditer(file.text.text)
    for match in [*flags, *given, *of_transformers]:
        start = match.start() + max(match[0].rfind("FSDP_"), 0)
        start += len(match[0]) - len(match[0].lstrip())
        if not any(span.start <= start < span.end for span in spans):
            statement = Statement(Kind.COMMAND, Span(start, match.end()))
            code = TRANSFORMERS if match.re is _OPTIONS_IN_TEXT else ACCELERATE
            block = Words(code, file, Span(start, match.end()), statement=statement)
            name = match[0].split()[-1].strip("-:=").lower() if code == ACCELERATE else "fsdp"
            block.settings[name] = Setting(name, None, ELSEWHERE)
            block.spans[name] = block.head
            block.reason = ELSEWHERE
            yield block
            return
