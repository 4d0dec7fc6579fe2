"""Train a model that is put together from functions of a project; see ``entries.py``.

Copied into scratch copies of the project and run there, like any training script.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_MANY = 1_000_000  # the recorder stops the run
_RATES = {"adamw": 1e-3, "sgd": 1e-2}


def main() -> None:
    """Build, shard, train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default=None)
    settings = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    settings["optimizer"] = parser.parse_args().optimizer or settings["optimizer"]
    sys.path.insert(0, os.getcwd())
    device = _device()
    rank, world = dist.get_rank(), dist.get_world_size()
    model = _named(settings["model"])()
    inputs = getattr(model, "example_inputs", None)
    sharded = _named(settings["shard"])(model)
    model = model if sharded is None else sharded
    optimizer = _optimizer(model, settings)
    for step in range(_MANY):
        accumulate = settings["accumulate"]
        for micro in range(accumulate):
            batch = _batch(settings, inputs, rank, world, step * accumulate + micro, device)
            args, kwargs = batch
            with _synchronised(model, micro == accumulate - 1):
                loss = _loss(settings, model(*args, **kwargs), batch)
                (loss / accumulate).backward()
        _clip(model, settings)
        optimizer.step()
        optimizer.zero_grad()


def _device() -> torch.device:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("gloo")
    return torch.device("cpu")


def _named(name: str) -> Any:
    """The object ``module:attribute.attribute``."""
    module, _, attributes = name.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


def _optimizer(model: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    kind = settings["optimizer"]
    if kind not in _RATES:
        made: torch.optim.Optimizer = _named(kind)(model)
        return made
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr = settings["lr"] or _RATES[kind]
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=lr)


def _batch(
    settings: dict[str, Any], inputs: Any, rank: int, world: int, number: int, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of one call of the model."""
    if settings["batch"] is not None:
        made = _named(settings["batch"])(rank, world, number, device)
    elif inputs is not None:
        made = inputs()
    else:
        raise SystemExit("name a function for batch, or give the model a method example_inputs()")
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):
        args, kwargs = made
        return tuple(args), kwargs
    if isinstance(made, Mapping):
        return (), dict(made)
    return (made if isinstance(made, tuple) else (made,)), {}


def _synchronised(model: Any, last: bool) -> Any:
    """Gradients are reduced with the last micro-batch only."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
    elif not last and hasattr(model, "no_sync"):
        return model.no_sync()
    return contextlib.nullcontext()


def _loss(settings: dict[str, Any], output: Any, batch: Any) -> torch.Tensor:
    if settings["loss"] is not None:
        found: torch.Tensor = _named(settings["loss"])(output, batch)
        return found
    if isinstance(output, Mapping) and "loss" in output:
        output = output["loss"]
    elif hasattr(output, "loss"):
        output = output.loss
    if isinstance(output, tuple | list):
        output = output[0]
    if not isinstance(output, torch.Tensor):
        raise SystemExit(f"name a function for loss: the model returns {type(output).__name__}")
    return output if output.numel() == 1 else output.float().square().mean()


def _clip(model: Any, settings: dict[str, Any]) -> None:
    bound = settings["max_norm"]
    if settings["clip"] is not None:
        _named(settings["clip"])(model, 1.0 if bound is None else bound)
    elif bound is not None and hasattr(model, "clip_grad_norm_"):
        model.clip_grad_norm_(bound)
    elif bound is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), bound)


if __name__ == "__main__":
    main()
