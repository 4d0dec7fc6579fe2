"""Compare what two runs saved, as a plain single process of the project's interpreter reads it.

``saved.py BEFORE AFTER RANKS SLACK PATHS ANSWERS`` finds a JSON list of paths in the file ``PATHS``
and writes into ``ANSWERS`` a list with one object a path: ``{"path", "kind": "checkpoint" or
"other", "problem", "missing", "added", "parts", "shapes", "dtypes": [[name, text], ...],
"apart": [[name, difference, size], ...]}``.
A path is a file or, for ``torch.distributed.checkpoint``, a folder. Files that every rank wrote for
itself may be cut otherwise if together they hold the same, within the slack.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import tempfile
from typing import Any

Totals = tuple[float, float, float]
"""Sum and sum of squares of some values, and the scale to see differences of them in."""

_DIFFERENCES = ("missing", "added", "parts", "shapes", "dtypes", "apart")


def main() -> None:
    """Compare every path."""
    sys.path.pop(0)  # this file's own folder
    before, after, world, slack = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4])
    with open(sys.argv[5], encoding="utf-8") as file:
        paths = json.load(file)
    found = {path: _compare(before, after, path) for path in paths}
    for family in _families(paths, world):
        if all(_parts_only(found[path]) for path in family) and _add_up(
            [[_read(os.path.join(tree, path))[0] for path in family] for tree in (before, after)],
            slack,
        ):
            for path in family:
                # What has whole elements was not added up: the state of a generator, an order.
                exact = [each for each in found[path]["apart"] if each[0] in found[path]["whole"]]
                found[path] |= {**{key: [] for key in _DIFFERENCES}, "apart": exact}
    for path in paths:
        found[path].pop("whole", None)
    with open(sys.argv[6], "w", encoding="utf-8") as file:
        json.dump([{"path": path, **found[path]} for path in paths], file)


def _families(paths: list[str], world: int) -> list[list[str]]:
    """Files that every rank wrote for itself: the same name with the number of each rank in it."""
    kinds: dict[tuple[str, str], dict[int, str]] = {}
    for path in paths:
        for match in re.finditer(r"\d+", path):
            kinds.setdefault((path[: match.start()], path[match.end() :]), {})[int(match[0])] = path
    return [
        [members[rank] for rank in range(world)]
        for members in kinds.values()
        if world > 1 and set(members) == set(range(world))
    ]


def _parts_only(answer: dict[str, Any]) -> bool:
    """Whether a file could be read on both sides."""
    return answer["kind"] == "checkpoint" and not answer["problem"]


def _add_up(sides: list[list[Any]], slack: float) -> bool:
    """Whether the files of all ranks together hold the same on both sides, however it was cut."""
    mine, theirs = (_totals(files) for files in sides)
    if mine.keys() != theirs.keys():  # flat parameters have no names
        mine, theirs = ({"": _sum(each)} for each in (mine, theirs))
    return all(
        abs(x - y) <= slack * total[2]
        for name, total in mine.items()
        for x, y in zip(total[:2], theirs[name][:2], strict=True)
    )


def _sum(totals: dict[Any, Totals]) -> Totals:
    found = (0.0, 0.0, 0.0)
    for x, y, z in totals.values():
        found = (found[0] + x, found[1] + y, found[2] + z)
    return found


def _totals(files: list[Any]) -> dict[str, Totals]:
    """The totals of every tensor over all files, by names without the levels of wrappers."""
    found: dict[str, list[Totals]] = {}
    for value in files:
        for path, leaf in _leaves(value):
            flat = _flat(leaf)
            if flat is not None:
                name = re.sub(r"_fsdp_wrapped_module\.|(?<=/)module\.", "", path)
                power = flat.dot(flat).item()
                total = flat.sum().item(), power, power + flat.abs().sum().item()
                found.setdefault(name, []).append(total)
    return {name: _sum(dict(enumerate(each))) for name, each in found.items()}


def _flat(leaf: Any) -> Any:
    """The elements of a tensor that a rank saved, flattened; None of anything else."""
    import torch

    local = getattr(leaf, "_local_tensor", leaf)
    if type(leaf).__name__ == "ShardedTensor":
        parts = [shard.tensor.reshape(-1) for shard in leaf.local_shards()]
        local = torch.cat(parts) if parts else torch.zeros(0)
    if isinstance(local, torch.Tensor) and local.is_floating_point() and local.dim():
        return local.detach().double().reshape(-1)
    return None


def _compare(before: str, after: str, path: str) -> dict[str, Any]:
    found, problem = _read(os.path.join(before, path))
    if problem:  # a log, a plot, a format that torch does not read
        return {"kind": "other", "problem": problem}
    if not os.path.exists(os.path.join(after, path)):
        return {"kind": "checkpoint", "problem": "is not written"}
    other, problem = _read(os.path.join(after, path))
    if problem:
        return {"kind": "checkpoint", "problem": f"cannot be loaded: {problem}"}
    mine, theirs = dict(_leaves(found)), dict(_leaves(other))
    return {"kind": "checkpoint", "problem": "", **_differences(mine, theirs)}


def _read(path: str) -> tuple[Any, str]:
    """What was saved, and why it could not be read."""
    import torch

    try:
        if os.path.isdir(path):
            from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

            with tempfile.TemporaryDirectory() as folder:
                whole = os.path.join(folder, "whole.pt")
                dcp_to_torch_save(path, whole)
                return torch.load(whole, map_location="cpu", weights_only=False), ""
        if path.endswith((".npy", ".npz")):
            import numpy

            arrays = numpy.load(path)
            named = arrays.items() if path.endswith(".npz") else [("array", arrays)]
            return {name: torch.as_tensor(array) for name, array in named}, ""
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

            return load_file(path), ""
        try:
            return torch.load(path, map_location="cpu", weights_only=True), ""
        except pickle.UnpicklingError:  # holds more than tensors; it was written by the user's code
            return torch.load(path, map_location="cpu", weights_only=False), ""
    except Exception as error:
        lines = str(error).strip().splitlines()
        return None, f"{type(error).__name__}: {lines[0] if lines else ''}"


def _leaves(value: Any, path: str = "") -> Any:
    """Every value that is no container, by its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}/{number}")
    else:
        yield path, value


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    import torch

    parts, shapes, dtypes, apart, whole = [], [], [], [], []
    for name in mine.keys() & theirs.keys():
        a, b = mine[name], theirs[name]
        if type(b).__name__ in ("DTensor", "ShardedTensor") and type(a) is torch.Tensor:
            parts.append(name)
        elif _is_number(a) and _is_number(b):  # a step count: a number or a tensor
            numbers = [torch.tensor([float(each)], dtype=torch.float64) for each in (a, b)]
            apart.append([name, *_apart(*numbers)])
        elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype:
                said = f"{name} is {_described(a)} before, {_described(b)} after"
                if a.shape != b.shape:
                    shapes.append(said)
                else:
                    dtypes.append([name, said])
            if a.shape == b.shape and a.numel():
                if not a.is_floating_point():
                    whole.append(name)
                apart.append([name, *_apart(a.double(), b.double())])
    return {
        "missing": sorted(set(mine) - set(theirs)),
        "added": sorted(set(theirs) - set(mine)),
        "parts": sorted(parts),
        "shapes": sorted(shapes),
        "dtypes": sorted(dtypes),
        "apart": sorted(apart),
        "whole": whole,
    }


def _apart(a: Any, b: Any) -> tuple[float, float]:
    """The largest difference, and the size of what is finite before. An infinite value, such as the
    best loss before there was one, is the same as another of its sign."""
    same = (a == b) | (a.isnan() & b.isnan())
    difference = (a - b).abs().masked_fill(same, 0.0).max().item()
    finite = a[a.isfinite()]
    return difference, finite.abs().max().item() if finite.numel() else 0.0


def _is_number(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}"


if __name__ == "__main__":
    main()
