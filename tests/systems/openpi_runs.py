"""What ranks do with the functions of the openpi-like trainer, for its tests."""

from __future__ import annotations

import runpy
import sys

import torch
import torch.distributed as dist

from fsdp_migrate.verify.inject import unit_dtypes


def named(script: str, directory: str) -> None:
    """Print what is said of a unit of two dtypes, in either version."""
    sys.path.insert(0, directory)
    sys.argv = [script, "--selected_params"]
    try:
        runpy.run_path(script, run_name="__main__")
    except (AssertionError, ValueError) as error:
        print(unit_dtypes.told(error.__traceback__))
    dist.destroy_process_group()


def given(directory: str) -> None:
    """After wrapping, every rank has the weights that rank 0 alone had."""
    sys.path.insert(0, directory)
    import modeling  # type: ignore[import-not-found]
    import train_pytorch_fsdp  # type: ignore[import-not-found]

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    expected = modeling.PI0().state_dict()
    torch.manual_seed(dist.get_rank())
    model = modeling.PI0()
    if dist.get_rank() != 0:
        model.frequencies.zero_()
    model = train_pytorch_fsdp._fsdp_wrap(model, torch.device("cpu"), "auto")
    for name, value in model.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        assert torch.equal(whole, expected[name]), name
    dist.destroy_process_group()
