"""Which files of a project that may reach FSDP1 matter to it, and which are library.

Three questions, asked of text: whether a file that holds a word of FSDP's leads to FSDP1 at all,
which files are joined to it by imports, and what those do to a model that they are given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.discovery import project_paths
from fsdp_migrate.discovery.import_graph import Neighbours
from fsdp_migrate.discovery.project_files import ProjectFiles
from fsdp_migrate.discovery.walk import NOTEBOOK
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax import spelled

# Every import and every dotted path that leads to FSDP1's package matches this, and FSDP2's old
# one: where only FSDP2 is used, it is looked at for hazards.
GAP = rb"(?:\s|\\\r?\n|#[^\n]*\n)*"  # what may stand around a dot
PACKAGE = re.compile(
    rb"\bdistributed%s\.%s(?:_composable%s\.%s)?fsdp\b"
    rb"|\bdistributed(?:\s|\\\r?\n)+import\b(?:\s|\\\r?\n)*(?:\([^)]*|(?:[^\n\\]|\\\r?\n)*)\bfsdp\b"
    rb"|\.%sfsdp%s\.%s[A-Za-z_]" % (GAP, GAP, GAP, GAP, GAP, GAP, GAP)
)
PARENT = b"distributed"
# An import from a package that is not torch, and names that are torch's.
OTHER_IMPORT = re.compile(
    rb"(?m)^[ \t]*from[ \t]+(?!torch\b)([\w.]+)[ \t]+import\b[ \t]*(\([^)]*|[^(\n]*)"
)
LOOK_ALIKE = re.compile(rb"\b(?:fully_shard|FullyShardedDataParallel)\b")
SUPPORT = "fsdp2_support"
# Parts of parameter names, for code that edits the keys of checkpoints.
WRAPPED = b"_fsdp_wrapped_module"
ARGUMENTS = (b"TrainingArguments", b"fsdp")  # of transformers
OF_TRL = (b"trl", b"Config(", b"fsdp")
STRATEGY = (b"lightning", b"fsdp")  # that Lightning is given by its name
STRATEGIES = (b"lightning", b"FSDPStrategy")
OLD_STRATEGIES = (b"lightning", b"DDPFullySharded")
RUNNERS = re.compile(rb"\b(?:Trainer|Fabric)\(")
TRAINER = (b"composer", b"Trainer(")  # of composer's
SETTINGS = re.compile(rb"\b(?:parallelism_config|fsdp_config)\b")  # that it is given
HANDED_ON = re.compile(  # settings of accelerate's or transformers', in texts and mappings
    rb"[\"']FSDP_[A-Z]|[\"']ACCELERATE_USE_FSDP[\"']|--use_fsdp\b|--fsdp_sharding_strategy\b"
    rb"|FSDP_(?:SHARDING_STRATEGY|AUTO_WRAP_POLICY|STATE_DICT_TYPE|USE_ORIG_PARAMS)[ \t]*="
    rb"|\w\.strategy=[\"']?fsdp\b"  # verl's
    rb"|distributed_type[\"']?\s*[:=]\s*[\"']?[\w.]*FSDP\b"
    rb"|fsdp(?:[\"']?\]?\s*[:=,]\s*[\[(]?\s*[\"']|[ =]+\\?[\"']?)"
    rb"(?:full_shard|shard_grad_op|no_shard|hybrid_shard)"
)
PLUGIN = b"FullyShardedDataParallelPlugin"  # of accelerate's
GUARD = re.compile(rb"[\"']fsdp-migrate FSDP")  # what is left to be migrated
PARAMETER_NAMES = (b"_fpw_module", b"_flat_param")
# What code does to a model it was given: such files matter once the project wraps one.
MODEL_USES = rb"\.(?:(?:named_)?parameters\(|(?:%s)\b)" % (
    "|".join(sorted(fsdp1.METHODS | fsdp1.STATE_METHODS | fsdp1.STATICS)).encode()
)
# Each pattern begins with fixed text, which is found fast; a look-behind tests what precedes it.
# Methods that nothing else has, in files that a registry may load without an import.
FSDP1S_METHODS = re.compile(rb"\.(?:%s)\(" % "|".join(sorted(fsdp1.ONLY_MODELS)).encode())
RELEVANT_USES = tuple(
    map(
        re.compile,
        (
            MODEL_USES,
            rb"\.data *=(?!=)",  # of parameters that it is given
            rb"\[[\"']params[\"']\]",  # of an optimizer's group
            rb"optim",  # one may be made of what is given, as ``torch.optim`` or in a function
            rb"\.forward\((?<!\)\.forward\()(?<!\bself\.forward\()",  # of a unit, maybe
            rb"load_sharded_optimizer_state_dict",
            rb"CheckpointImpl\.REENTRANT\b",
            rb"use_reentrant *= *True\b",
            rb"autograd\.backward\(",  # in a checkpoint of the project's own
            rb"type\((?<!\wtype\()\w+\)(?:\.__name__)? *(?:is|==|!=|in|not)\b",
            rb"\.__class__\b",
            rb"\bis(?:instance|subclass)\([^,()]*(?:\([^()]*\))?,\s*\(?(?:\w+\.)*[A-Z](?!ensor\b)\w*[a-z]",
            rb"deepcopy\((?<!\wdeepcopy\()",
            rb"AveragedModel\((?<!\wAveragedModel\()",
            rb"Linear4bit",
            rb"linear4bit",
            rb"Params4bit",
            rb"params4bit",
            rb"load_in_4bit",
            rb"class (?<!\wclass )\w+\([^)]*\bParameter\b",
            rb"class (?<!\wclass )\w+\(\s*(?:\w+\.)?(?:ABC|Generic|Protocol)\b",  # of a model
            rb"_gradient_p(?<!\w_gradient_p)(?:re|ost)divide_factor\b",
            # What is done to FSDP2's models and tensors, and to their states.
            rb"\.set_(?:requires_gradient_sync|requires_all_reduce|is_last_backward"
            rb"|reshard_after_(?:for|back)ward|modules_to_(?:for|back)ward_prefetch"
            rb"|unshard_in_backward)\(",
            rb"\.to_local\(",
            rb"\._local_tensor\b",
            rb"\.full_tensor\(",
            rb"distributed\.checkpoint\b",
        ),
    )
)
# The same, where every place of it is asked for.
PLACES = (re.compile(MODEL_USES), re.compile(rb"type\(\w+\)"), re.compile(rb"deepcopy\("))

# What a model is given or returns may be a dataclass, which FSDP2 must be told of.
DATACLASSES = (b"dataclass", b"torch")


def classify(found: ProjectFiles, rest: Sequence[str], jobs: int) -> None:
    """Leave in ``found.candidates`` what can meet FSDP1, add to ``others`` what may meet an FSDP
    model, and the remaining files to ``library``. ``rest`` are files that do not mention FSDP."""
    code = {path: _code(path, data) for path, data in found.candidates.items()}
    reaching = [path for path, data in code.items() if _reaches(data)]
    if reaching:
        _split(reaching, code, rest, found, jobs)
        _add_support(found)
    else:
        found.look_alikes = tuple(_look_alikes(code, found))
        found.library = [*map(str, found.candidates), *rest]
        found.candidates.clear()


def _look_alikes(code: Mapping[Path, bytes], found: ProjectFiles) -> Iterator[str]:
    """The names of torch's FSDP that files import from modules of the project itself."""
    own = {n.removesuffix(".py") for path in code for n in path.relative_to(found.root).parts}
    for path, data in sorted(code.items()):
        for imported in OTHER_IMPORT.finditer(data):
            source, line = imported[1].decode(), data.count(b"\n", 0, imported.start()) + 1
            name = LOOK_ALIKE.search(imported[2])
            if name and source.partition(".")[0] in own:
                yield f"{name[0].decode()} of {source} ({found.display(path)}:{line})"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # gone since it was read


@dataclass
class _Contents(Mapping[Path, bytes]):
    """The code of files by path. Files that do not mention FSDP are read when they are asked for:
    together they may be larger than memory."""

    candidates: Mapping[Path, bytes]
    rest: Sequence[Path]

    def __getitem__(self, path: Path) -> bytes:
        known = self.candidates.get(path)
        return known if known is not None else _code(path, _bytes(path))

    def __iter__(self) -> Iterator[Path]:
        yield from self.candidates
        yield from self.rest

    def __len__(self) -> int:
        return len(self.candidates) + len(self.rest)


def _reaches(data: bytes) -> bool:
    """Whether a file could lead to FSDP1 by itself, and not only through other files."""
    guarded = GUARD.search(data) is not None or PLUGIN in data
    guarded = guarded or all(word in data for word in ARGUMENTS)
    guarded = guarded or all(word in data for word in OF_TRL)
    guarded = guarded or any(all(w in data for w in each) for each in (STRATEGIES, OLD_STRATEGIES))
    guarded = guarded or (all(word in data for word in STRATEGY) and bool(RUNNERS.search(data)))
    guarded = guarded or (all(word in data for word in TRAINER) and bool(SETTINGS.search(data)))
    guarded = guarded or HANDED_ON.search(data) is not None
    return guarded or WRAPPED in data or (PARENT in data and PACKAGE.search(data) is not None)


def _code(path: Path, data: bytes) -> bytes:
    """The Python in a file. In a notebook it is what lies between outputs and markup."""
    if path.suffix != NOTEBOOK:
        return _with_plain_names(data)
    from fsdp_migrate.syntax import notebook

    return _with_plain_names(notebook.code(data))


def _with_plain_names(data: bytes) -> bytes:
    try:
        return spelled.names(data)
    except ValueError:  # reading it will say why it cannot be read
        return data


def _split(
    reaching: Sequence[Path],
    code: Mapping[Path, bytes],
    unmarked: Sequence[str],
    found: ProjectFiles,
    jobs: int,
) -> None:
    """Tell the files that may meet an FSDP model, or pass one on, from the library.

    A file that mentions FSDP is library if it neither reaches FSDP1 nor is joined by imports to a
    file that does, or to one that does beside it what only FSDP1's models can do.
    """
    others = [Path(file) for file in unmarked]
    contents = _Contents(code, others)
    imports = Neighbours(contents, PARAMETER_NAMES, jobs, found.root)
    users, neighbours = imports.joined_to(reaching)
    beside = {path.parent for path in reaching}
    handed = {
        p
        for p in (*found.candidates, *others)
        if p.parent in beside and FSDP1S_METHODS.search(contents[p])
    } - (users | neighbours)
    near = users | neighbours
    if handed:  # what builds on such a file may be handed a model as well
        near |= imports.joined_to(handed)[0]
    if imports.by_hydra:
        above, below = imports.joined_to(
            _having_called(reaching, imports.by_hydra, contents, found)
        )
        users, near = users | above, near | above | below
    for path in [p for p in found.candidates if p not in near]:
        del found.candidates[path]
        found.library.append(str(path))
    # Read once; most of them end up in memory anyway.
    texts = {path: contents[path] for path in (*found.candidates, *others) if path in near}
    met = {
        path
        for path in others
        if path in users or path in imports.marked or (path in near and _uses_models(texts[path]))
    }
    taken = [path for path in texts if path in met or path in found.candidates]
    rest = [path for path in texts if path not in met and path not in found.candidates]
    met |= _find_callers(taken, rest, imports, texts)
    for path in others:
        if path in met:
            found.others[path] = _bytes(path)  # what was searched may spell its names anew
        else:
            found.library.append(str(path))
            if path in near:
                found.joined.add(path)


def _having_called(
    reaching: Sequence[Path],
    by_hydra: Set[Path],
    contents: Mapping[Path, bytes],
    found: ProjectFiles,
) -> list[Path]:
    """The files that have hydra call what configurations name of files that lead to FSDP1."""
    stems = {path.parent.name if path.stem == "__init__" else path.stem for path in reaching}
    keys = [
        re.escape(key.removesuffix(":").encode())
        for key, names in found.configured.items()
        if any(not stems.isdisjoint(name.split(".")) for name in names)
    ]
    asking, getting = rb"\b(?:instantiate|call)", rb"\bget_(?:(?:static_)?method|class|object)"
    ways = [rb"(?:%s|%s)\([^()]*\b(?:%s)\b" % (asking, getting, b"|".join(keys))] if keys else []
    written = b"|".join(re.escape(stem.encode()) for stem in sorted(stems))
    ways += [getting + rb"\([ \n]*[\"'][\w.]*\b(?:%s)\b" % written] if written else []
    if not ways:
        return []
    calling = re.compile(b"|".join(ways))
    return [path for path in sorted(by_hydra) if calling.search(contents[path])]


def _uses_models(data: bytes) -> bool:
    """Whether a file does something that matters to a model it is given."""
    used = any(pattern.search(data) is not None for pattern in RELEVANT_USES)
    return used or all(word in data for word in DATACLASSES)


def _find_callers(
    taken: Sequence[Path], rest: Sequence[Path], imports: Neighbours, contents: Mapping[Path, bytes]
) -> set[Path]:
    """The files of ``rest`` that pass models to functions of ``taken`` ones."""
    from fsdp_migrate.analysis.tracing.call_graph import COMMON_METHODS
    from fsdp_migrate.discovery.callers import CallerSearch

    common = frozenset(name.encode() for name in COMMON_METHODS)
    return CallerSearch(imports, contents, common).find(taken, rest, PLACES)


def _add_support(found: ProjectFiles) -> None:
    """Add the support modules of earlier runs, so that they are used again and not doubled."""
    known = {*found.candidates, *found.others}
    for directory in {path.parent for path in found.candidates}:
        for number in range(1, 10):
            path = directory / f"{SUPPORT}{f'_{number}' if number > 1 else ''}.py"
            if path in known:
                continue
            if not os.path.lexists(path):
                break
            try:
                found.others[path] = project_paths.read_regular_file(path, found.trees)
            except OSError:  # it is none of ours
                continue
            if str(path) in found.library:
                found.library.remove(str(path))
            else:
                found.seen += 1
