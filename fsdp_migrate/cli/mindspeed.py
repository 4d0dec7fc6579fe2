"""The file that MindSpeed-MM's FSDP2 reads, of what a run of the original showed.

Which modules are units is known where the model is. Braces make lines of many paths
(``configurations/brace_paths.py``), and what is written is expanded again and compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fsdp_migrate.configurations import brace_paths
from fsdp_migrate.configurations.brace_paths import PathError
from fsdp_migrate.configurations.formats import tree, yaml
from fsdp_migrate.configurations.frameworks import mindspeed, words
from fsdp_migrate.configurations.settings import Value
from fsdp_migrate.errors import InputError
from fsdp_migrate.verify.compare.observed import Observed

WRAPPED, IGNORED = mindspeed.WRAPPED, "ignored_modules"
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MEGATRONS = "module."  # the level that its wrappers add, and that it looks below


class _Model:
    """The one model of a run, by paths as MindSpeed-MM has them."""

    def __init__(self, observed: Observed) -> None:
        layout = observed.layout
        if not layout.units:
            raise InputError("the original made no units, or was not recorded")
        if len(layout.models) > 1:
            raise InputError(f"one model has a file, and there are {', '.join(layout.models)}")
        names = layout.parameters
        cut = 0
        while all(name[cut:].startswith(_MEGATRONS) for name in names):
            cut += len(_MEGATRONS)
        self.parameters = {name[cut:] for name in names}
        self.outside = {name[cut:] for name in layout.outside}
        self.units = {u.module[cut:]: {n[cut:] for n in u.parameters} for u in layout.units}
        self.modules = {above for name in self.parameters for above in _above(name)} | {*self.units}

    def unit_of(self, wrapped: Collection[str], ignored: Collection[str]) -> dict[str, str | None]:
        """Each parameter's unit under FSDP2: the nearest one around it, or the root."""
        found: dict[str, str | None] = {}
        for name in self.parameters:
            above = list(_above(name))
            inner = next((path for path in above if path in wrapped), "")
            found[name] = None if any(path in ignored for path in above) else inner
        return found

    def as_it_was(self) -> dict[str, str | None]:
        units = {name: path for path, names in self.units.items() for name in names}
        return {name: units.get(name) for name in self.parameters}


def document(observed: Observed) -> str:
    """The YAML for what the original had.

    Raises:
        InputError: MindSpeed-MM's FSDP2 has nothing for some of it.
    """
    model = _Model(observed)
    ignored = _ignored(model)
    wrapped = [path for path in model.units if path]
    lines = [
        f"# the units that FSDP1 made of {observed.layout.models[0]}, on {observed.world} ranks",
        *_strategy(observed),
        *_dtypes(observed),
        *_listed(WRAPPED, _proved(wrapped, model.modules)),
        *_listed(IGNORED, _proved(ignored, model.modules)),
        *_options(observed),
    ]
    return "\n".join(lines) + "\n"


def check(text: str, observed: Observed) -> None:
    """Hold a file against a run.

    Raises:
        InputError: a path fits nothing, the units are others, or it cannot be read.
    """
    try:
        settings = _read(text)
        model = _Model(observed)
        wrapped, ignored = (_expanded(settings.get(key), model) for key in (WRAPPED, IGNORED))
    except PathError as error:
        raise InputError(str(error)) from None
    wrong = mindspeed.wrong_resharding(
        settings.get(mindspeed.RESHARD), _size(settings, observed.world)
    )
    if wrong:
        raise InputError(wrong)
    before, after = model.as_it_was(), model.unit_of(wrapped, ignored)
    for name in sorted(before):
        if before[name] != after[name]:
            was, is_ = map(_shown, (before[name], after[name]))
            raise InputError(f"{name} was in {was} under FSDP1, and is in {is_} by this file")


def _expanded(listed: Value, model: _Model) -> set[str]:
    paths = listed if isinstance(listed, tuple) else ()
    return {m for path in paths for m in brace_paths.expanded(str(path), model.modules)}


def _read(text: str) -> dict[str, Value]:
    try:
        nodes = yaml.read(text)
    except yaml.NotYaml as error:
        where = f"line {error.line}, column {error.column}"
        raise InputError(f"is not YAML: {error.message} ({where})") from None
    if len(nodes) != 1 or not isinstance(nodes[0], tree.Mapping):
        raise InputError("is no mapping of settings")
    found: dict[str, Value] = {}
    for pair in nodes[0].pairs:
        value, unknown = tree.value_of(pair.value)
        if unknown:
            raise InputError(f"{pair.key} is not known here: {unknown}")
        found[pair.key] = value
    return found


def _size(settings: Mapping[str, Value], world: int) -> int | None:
    given = settings.get(mindspeed.SIZE, 1)
    return world if given == "auto" else words.whole(given)


def _shown(unit: str | None) -> str:
    return "no unit" if unit is None else unit or "the root's"


def _above(name: str) -> Iterable[str]:
    """The modules around a parameter, the nearest first, without the model itself."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _ignored(model: _Model) -> list[str]:
    """The outermost modules with nothing but parameters that no unit had.

    The root is a unit under FSDP2 and takes what is left: that was trained without a gather or a
    mean under FSDP1, as what is ignored is.
    """
    found: dict[str, None] = {}
    for name in sorted(model.outside):
        fits = [
            path
            for path in _above(name)
            if not any(n.startswith(f"{path}.") for n in model.parameters - model.outside)
        ]
        if not fits:
            raise InputError(
                f"{name} is in no unit under FSDP1, and FSDP2's root would take it: no module has "
                "it without others that are in one"
            )
        found[fits[-1]] = None
    return list(found)


def _proved(modules: list[str], known: Collection[str]) -> list[str]:
    paths = brace_paths.compact(modules)
    again = [module for path in paths for module in brace_paths.expanded(path, known)]
    assert sorted(again) == sorted(modules), paths
    return paths


def _listed(key: str, paths: list[str]) -> list[str]:
    return [f"{key}:", *(f'  - "{path}"' for path in paths)] if paths else []


def _given(observed: Observed, argument: str) -> list[object]:
    """What the constructors got for an argument, each value once."""
    found: list[object] = []
    for made in observed.made:
        value = made.arguments.get(argument)
        if value not in found:
            found.append(value)
    return found


def _one(observed: Observed, argument: str) -> object:
    found = _given(observed, argument)
    if len(found) > 1:
        raise InputError(f"the constructors got several values for {argument}: the file has one")
    return found[0] if found else None


def _strategy(observed: Observed) -> list[str]:
    given = [str(each or "FULL_SHARD") for each in _given(observed, "sharding_strategy")]
    found = {words.strategy(each.rpartition(".")[2]) for each in given or ["FULL_SHARD"]}
    if len(found) > 1:
        raise InputError(f"the units have {', '.join(given)}, and the file has one for all")
    named = found.pop()
    if named is None or named.startswith("HYBRID"):
        raise InputError(
            f"{given[0]}: write {mindspeed.SIZE}, the number of ranks of one machine, by hand"
        )
    if named == "NO_SHARD":
        return [f"{mindspeed.SIZE}: 1"]
    reshard = str(words.RESHARDING[named]).lower()
    return [f"{mindspeed.SIZE}: auto", f"{mindspeed.RESHARD}: {reshard}"]


def _dtypes(observed: Observed) -> list[str]:
    lines = []
    for key in ("param_dtype", "reduce_dtype"):
        found = {str(getattr(unit, key)) for unit in observed.layout.units}
        if len(found) > 1 or not found <= DTYPES.keys():
            said = ", ".join(sorted(found))
            raise InputError(
                f"the units have {said} as {key}, and the file has one of bf16, "
                "fp16 and fp32 for all"
            )
        lines.append(f'{key}: "{DTYPES[found.pop()]}"')
    return lines


def _options(observed: Observed) -> list[str]:
    """What FSDP2 has by itself, such as BACKWARD_PRE, is not written."""
    lines = []
    offload = _one(observed, "cpu_offload")
    if offload is True or (isinstance(offload, Mapping) and offload.get("offload_params")):
        lines.append("offload_to_cpu: true")
    if _one(observed, "forward_prefetch") is True:
        lines.append("num_to_forward_prefetch: 1")
    return lines
