"""Which mappings of YAML and JSON are settings of FSDP, and of which framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from fsdp_migrate.configurations import lightning_files
from fsdp_migrate.configurations.block import Block, File
from fsdp_migrate.configurations.entries import Entries
from fsdp_migrate.configurations.formats import json_, yaml
from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Scalar, mappings
from fsdp_migrate.configurations.formats.tree import Sequence as ListNode
from fsdp_migrate.configurations.frameworks.axolotl import FINAL, OUTER
from fsdp_migrate.configurations.frameworks.mindspeed import FSDP1, WRAPPED
from fsdp_migrate.configurations.frameworks.verl import OF_ENGINE
from fsdp_migrate.configurations.known_keys import (
    BESIDE_ACCELERATE,
    BESIDE_AXOLOTL,
    BESIDE_COMPOSER,
    BESIDE_TRANSFORMERS,
    COMPOSERS_KEYS,
    KEYS,
    OPTIONS,
)
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.configurations.variables import (
    OF_ACCELERATE,
    VARIABLES,
    setting_of,
    variable_of,
)

ACCELERATE, TRANSFORMERS, AXOLOTL, VERL = "FSDP510", "FSDP520", "FSDP540", "FSDP550"
LIGHTNING, COMPOSER, MINDSPEED = "FSDP530", "FSDP560", "FSDP570"
SECTION = "fsdp_config"
MESH = "parallelism_config"
LOOKS = re.compile(
    rb"(?i)fsdp_config|distributed_type[\"']?\s*:\s*[\"']?[\w.]*fsdp|strategy[\"']?\s*:\s*[\"']?fsdp"
    rb"|fsdp[\"']?\s*:[\s\[\"'-]*(?:full_shard|shard_grad_op|no_shard|hybrid_shard|auto_wrap|offload)"
    rb"|fsdp_(?:auto_wrap|transformer|sharding|backward|state|offload"
    rb"|use_orig|min_num|forward|sync|cpu_ram|activation|limit|xla|version)"
    rb"|--(?:use_)?fsdp\b|strategy=fsdp|accelerate_use_fsdp|\bfsdpstrategy\b"
    rb"|\b(?:use_fsdp1|sub_modules_to_wrap)[\"']?\s*:"
)
"""What a file has, as text, that may hold such a mapping."""

_ROLES = {"actor", "ref", "critic", "reward_model", "model", "engine", "teacher", "student"}
_STRATEGIES = {"fsdp", "fsdp2"}


def blocks_of_yaml(file: File, documents: Sequence[Node]) -> list[Block]:
    found = [b for node in documents for b in _blocks(file, documents, node, is_json=False)]
    made = _maker(file, documents, is_json=False)
    return [*found, *_environments(file, documents, made)]


def blocks_of_json(file: File, document: Node) -> list[Block]:
    return list(_blocks(file, [document], document, is_json=True))


def _maker(file: File, documents: Sequence[Node], *, is_json: bool) -> _Made:
    def made(code: str, top: Mapping, head: Span) -> Entries:
        return Entries(
            code,
            file,
            head,
            documents=documents,
            top=top,
            written=json_.written if is_json else yaml.written,
            read=(lambda text: [json_.read(text)]) if is_json else yaml.read,
            comments=not is_json,
            reason="" if is_json or not yaml.is_template(file.text.text) else _TEMPLATE,
        )

    return made


def _blocks(
    file: File, documents: Sequence[Node], node: Node, *, is_json: bool
) -> Iterator[Entries]:
    made = _maker(file, documents, is_json=is_json)
    roles = []
    for path, mapping in mappings(node):
        keys = {pair.key for pair in mapping.pairs}
        if SECTION in keys or "fsdp" in keys:
            if block := _known_keys(mapping, keys, made):
                yield block
                continue
        elif not path and _is_section(keys, file):
            yield _section_alone(mapping, made)
        if FSDP1 in keys and path[-1:] == ("patch",):
            yield _mindspeed_patch(mapping, made)
        elif WRAPPED in keys and not path:
            yield _mindspeed(mapping, made)
        if lightning_files.is_lightnings(path, mapping, keys):
            yield _lightning(mapping, made)
        elif "strategy" in keys and _is_role(_role_of(path, file), mapping, keys):
            roles.append((_role_of(path, file), mapping))
    if roles:
        yield _roles(roles, made)


_TEMPLATE = "statements of a template decide what there is of this file"
_Made = Callable[[str, Mapping, Span], Entries]


def _known_keys(mapping: Mapping, keys: set[str], made: _Made) -> Entries | None:
    if SECTION in keys and keys & BESIDE_ACCELERATE:
        return _accelerate(mapping, made)
    section = mapping.below(SECTION)
    inner = {pair.key for pair in section.pairs} if section is not None else set()
    if any(key.startswith("_") for key in inner):
        return None  # hydra calls something of the project's own with it
    if len(keys & BESIDE_AXOLOTL) > 1 and "base_model" in keys:
        return _with_section(AXOLOTL, mapping, made)
    words = len(keys & BESIDE_COMPOSER) + len(inner & COMPOSERS_KEYS)
    if SECTION in keys and (words > 1 or _is_composers(mapping)):
        return _composer(mapping, made)
    known = bool(inner) and {key.removeprefix("fsdp_") for key in inner} <= KEYS
    if _has_options(mapping) or (known and keys & BESIDE_TRANSFORMERS):
        return _with_section(TRANSFORMERS, mapping, made)
    return None


def _head(mapping: Mapping, *keys: str) -> Span:
    """The first of some keys that is there, or the first of all."""
    for key in keys:
        pair = mapping.get(key)
        if pair is not None:
            return pair.at
    return mapping.pairs[0].at if mapping.pairs else Span(mapping.start, mapping.start + 1)


def _accelerate(mapping: Mapping, made: _Made) -> Entries:
    block = made(ACCELERATE, mapping, _head(mapping, SECTION))
    block.sections = (SECTION, MESH)
    block.section_of = _section_of_accelerate
    block.take(mapping, str)
    for section in block.sections:
        _take_section(block, mapping, section, _prefixed if section == SECTION else str)
    return block


def _section_of_accelerate(name: str) -> str:
    if name.startswith(f"{MESH}_"):
        return MESH
    return SECTION if name.startswith("fsdp_") else ""


def _prefixed(key: str) -> str:
    """accelerate takes keys of the block with ``fsdp_`` or without."""
    return key if "fsdp" in key else f"fsdp_{key}"


def _with_section(code: str, mapping: Mapping, made: _Made) -> Entries:
    """axolotl and transformers: ``fsdp``, ``fsdp_config`` and ``fsdp_version``."""
    block = made(code, mapping, _head(mapping, SECTION, "fsdp"))
    block.sections = (SECTION,)
    own = {"fsdp", "fsdp_version"} if code == AXOLOTL else {"fsdp"}
    block.take(mapping, lambda key: OUTER if (code, key) == (AXOLOTL, FINAL) else key)
    block.settings.pop(SECTION, None)  # a path, or an alias
    block.section_of = lambda name: "" if name in own or name in _top(block) else SECTION
    block.key_of = lambda name: name.removeprefix(f"{SECTION}.")
    taken = set(block.settings)
    _take_section(block, mapping, SECTION, lambda k: f"{SECTION}.{k}" if k in taken else k)
    return block


def _is_composers(mapping: Mapping) -> bool:
    """Whether hydra calls composer's Trainer with a mapping."""
    pair = mapping.get("_target_")
    return pair is not None and isinstance(pair.value, Scalar) and _is_trainer(pair.value.value)


def _is_trainer(name: object) -> bool:
    return str(name).startswith("composer.") and str(name).endswith(".Trainer")


def _composer(mapping: Mapping, made: _Made) -> Entries:
    """composer: ``fsdp_config`` alone; what calls the Trainer says the version."""
    block = made(COMPOSER, mapping, _head(mapping, SECTION))
    block.sections = (SECTION,)
    block.section_of = lambda name: SECTION
    block.key_of = lambda name: name.removeprefix(f"{SECTION}.")
    if _is_composers(mapping):
        block.reason = block.reason or OLD_ARGUMENT
    section = mapping.below(SECTION)
    if section is None:
        block.take(mapping, str, (SECTION,))
    _take_section(block, mapping, SECTION, lambda key: f"{SECTION}.{key}")
    for pair in section.pairs if section is not None else ():
        if isinstance(pair.value, Mapping):
            block.reason = block.reason or f"{pair.key} is a mapping, which is not read"
    return block


OLD_ARGUMENT = (
    "fsdp_config is an argument of composer's Trainer before 0.26, which has no version 2: raise "
    "mosaicml to 0.31 or later, and say it in parallelism_config"
)


def _top(block: Entries) -> set[str]:
    return {pair.key for pair in block.top.pairs}


def _take_section(
    block: Entries, mapping: Mapping, section: str, name_of: Callable[[str], str]
) -> None:
    pair = mapping.get(section)
    if pair is None:
        return
    value = pair.value
    if isinstance(value, Mapping):
        block.take(value, name_of)
        block.reason = block.reason or value.odd or value.kept
    elif isinstance(value, Scalar) and (value.unknown or value.kept):
        block.reason = block.reason or f"{section}: {value.unknown or value.kept}"


def _is_section(keys: set[str], file: File) -> bool:
    """Whether a file is what transformers takes as ``fsdp_config``: its keys or its name say so."""
    bare = {key.removeprefix("fsdp_") for key in keys}
    return bool(bare & KEYS) and bare <= KEYS and (bare != keys or is_called_fsdp(file))


def is_called_fsdp(file: File) -> bool:
    return "fsdp" in file.path.name.lower()


def _section_alone(mapping: Mapping, made: _Made) -> Entries:
    block = made(TRANSFORMERS, mapping, _head(mapping))
    block.take(mapping, str)
    return block


def named_section(file: File, document: Node) -> Entries | None:
    """The block of a file that a program names as ``fsdp_config``."""
    if not isinstance(document, Mapping) or not document.pairs:
        return None
    return _section_alone(document, _maker(file, [document], is_json=True))


def _has_options(mapping: Mapping) -> bool:
    """Whether ``fsdp`` has such a value as transformers takes."""
    pair = mapping.get("fsdp")
    if pair is None:
        return False
    value = pair.value
    nodes = value.items if isinstance(value, ListNode) else [value]
    words = {
        word
        for node in nodes
        if isinstance(node, Scalar) and isinstance(node.value, str)
        for word in node.value.split()
    }
    return bool(words) and words <= OPTIONS


_ENVIRONMENTS = frozenset({"env", "envs", "environment"})
_LISTED = re.compile(
    r"(?m)^[ \t]*-[ \t]+(?:name[ \t]*:[ \t]*)?[\"']?((?:FSDP_(?:SHARDING_STRATEGY|AUTO_WRAP_POLICY"
    r"|BACKWARD_PREFETCH|USE_ORIG_PARAMS|STATE_DICT_TYPE|SYNC_MODULE_STATES)|ACCELERATE_USE_FSDP))\b"
)
ELSEWHERE = "it stands in a text that something else reads"


def _environments(file: File, documents: Sequence[Node], made: _Made) -> Iterator[Entries]:
    """accelerate's variables in the environments that a workflow or a job gives to its steps."""
    found = []
    for document in documents:
        for path, mapping in mappings(document):
            ours = [p.key for p in mapping.pairs if OF_ACCELERATE.fullmatch(p.key)]
            if path[-1:] and path[-1] in _ENVIRONMENTS and any(map(VARIABLES.fullmatch, ours)):
                block = made(ACCELERATE, mapping, _head(mapping, *ours))
                block.section_of = lambda name: ""
                block.key_of = variable_of
                block.take(mapping, setting_of, ours)
                found.append(block)
    for block in found if len(found) > 1 else ():
        block.reason = block.reason or "such variables stand in several places of this file"
    yield from found
    listed = _LISTED.search(file.text.text)
    if listed is not None and not found and documents:
        span, name = Span(*listed.span(1)), setting_of(listed[1])
        block = made(ACCELERATE, Mapping(*span), span)
        block.settings[name] = Setting(name, None, ELSEWHERE)
        block.spans[name] = span
        block.reason = "it is one of a list of variables"
        yield block


_FLAG = re.compile(
    r"(?m)^[^#\n]*?(--(?:use_fsdp|fsdp_(?:sharding_strategy|auto_wrap_policy|offload_params"
    r"|transformer_layer_cls_to_wrap|state_dict_type|use_orig_params|sync_module_states)))\b"
)
_FLAG_OF_2 = re.compile(r"--fsdp_version[\"',=\s-]+2\b")


def flag_elsewhere(file: File, documents: Sequence[Node]) -> list[Block]:
    """The first flag of accelerate among the words of a command that a file has in its own way."""
    flag = _FLAG.search(file.text.text)
    if flag is None or _FLAG_OF_2.search(file.text.text) is not None:
        return []
    span, name = Span(*flag.span(1)), flag[1].removeprefix("--")
    block = _maker(file, documents, is_json=False)(ACCELERATE, Mapping(*span), span)
    block.settings[name] = Setting(name, None, ELSEWHERE)
    block.spans[name] = span
    block.reason = "the command is not followed here"
    return [block]


def _role_of(path: tuple[str, ...], file: File) -> tuple[str, ...]:
    """Where hydra puts a mapping: a file of a group, ``actor/dp_actor.yaml``, is the group's."""
    if not path and file.path.parent.name in _ROLES:
        path = (file.path.parent.name,)
    return ("actor_rollout_ref", *path) if path in {("actor",), ("ref",)} else path


def _is_role(path: tuple[str, ...], mapping: Mapping, keys: set[str]) -> bool:
    """Whether a mapping says which FSDP one of verl's workers has."""
    pair = mapping.get("strategy")
    assert pair is not None
    known = isinstance(pair.value, Scalar) and pair.value.value in _STRATEGIES
    if path[-1:] == ("engine",):
        return known and bool(keys & OF_ENGINE)
    return known and (SECTION in keys or (bool(path) and path[-1] in _ROLES))


def _lightning(mapping: Mapping, made: _Made) -> Entries:
    block = made(LIGHTNING, mapping, _head(mapping, "strategy", "_target_", "class_path"))
    lightning_files.take(block, mapping)
    return block


def _mindspeed(mapping: Mapping, made: _Made) -> Entries:
    """The file that MindSpeed-MM's FSDP2 reads."""
    block = made(MINDSPEED, mapping, _head(mapping, WRAPPED))
    block.take(mapping, str)
    return block


def _mindspeed_patch(mapping: Mapping, made: _Made) -> Entries:
    """What asks for MindSpeed-MM's FSDP1 in the file of a model."""
    block = made(MINDSPEED, mapping, _head(mapping, FSDP1))
    section = mapping.below(FSDP1)
    if section is not None:
        block.take(section, lambda key: f"{FSDP1}.{key}")
    block.settings = {FSDP1: Setting(FSDP1, True), **block.settings}
    block.spans[FSDP1] = block.head
    return block


def _roles(roles: Sequence[tuple[tuple[str, ...], Mapping]], made: _Made) -> Entries:
    """verl: all workers of a file are one run."""
    first = roles[0][1]
    block = made(VERL, first, _head(first, "strategy"))
    block.key_of = lambda name: name.rpartition(".")[2]
    block.section_of = lambda name: name.rpartition(".")[0]
    for path, mapping in roles:
        _take_below(block, path, mapping, only="" if path[-1:] == ("engine",) else "strategy")
        of_critic = mapping.below("fsdp") if path[-1:] == ("critic",) else None
        for below, inner in mappings(of_critic, (*path, "fsdp")) if of_critic else ():
            _take_below(block, below, inner)
        for above, outer in ((path, mapping), ((*path, "model"), mapping.below("model"))):
            section = outer.below(SECTION) if outer is not None else None
            for below, inner in mappings(section, (*above, SECTION)) if section else ():
                _take_below(block, below, inner)
    return block


def _take_below(block: Entries, path: tuple[str, ...], mapping: Mapping, only: str = "") -> None:
    block.homes[".".join(path)] = mapping
    block.take(mapping, lambda key: ".".join((*path, key)), (only,) if only else ())
    block.reason = block.reason or mapping.odd or mapping.kept
