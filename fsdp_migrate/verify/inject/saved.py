"""Compare what two runs saved, as a plain single process of the project's interpreter reads it.

``saved.py BEFORE AFTER`` takes a JSON list of paths on standard input, and answers with one JSON
object a path on standard output: ``{"path", "kind": "checkpoint" or "other", "problem",
"missing", "added", "parts", "shapes", "apart": [[name, difference, size], ...]}``.
A path is a file or, for ``torch.distributed.checkpoint``, a folder.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from typing import Any


def main() -> None:
    """Compare every path."""
    sys.path.pop(0)  # this file's own folder
    before, after = sys.argv[1:]
    for path in json.load(sys.stdin):
        print(json.dumps({"path": path, **_compare(before, after, path)}), flush=True)


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

    parts, shapes, apart = [], [], []
    for name in mine.keys() & theirs.keys():
        a, b = mine[name], theirs[name]
        if type(b).__name__ in ("DTensor", "ShardedTensor") and type(a) is torch.Tensor:
            parts.append(name)
        elif _is_number(a) and _is_number(b):  # a step count: a number or a tensor
            apart.append([name, abs(float(a) - float(b)), abs(float(a))])
        elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape or a.dtype != b.dtype:
                shapes.append(f"{name} is {_described(a)} before, {_described(b)} after")
            elif a.numel():
                a, b = a.double(), b.double()
                apart.append([name, (a - b).abs().max().item(), a.abs().max().item()])
    return {
        "missing": sorted(set(mine) - set(theirs)),
        "added": sorted(set(theirs) - set(mine)),
        "parts": sorted(parts),
        "shapes": sorted(shapes),
        "apart": sorted(apart),
    }


def _is_number(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, int | float) and not isinstance(value, bool)


def _described(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)}"


if __name__ == "__main__":
    main()
