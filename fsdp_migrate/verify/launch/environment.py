"""The environment variables of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.inject.config import VARIABLE, Config
from fsdp_migrate.verify.launch.launcher import ACCELERATORS, has_accelerator

# Programs under test must not talk to the outside or leave traces there.
QUIET = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "COMET_OFFLINE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
}

# Two runs of the same code must give the same bits. CUBLAS_WORKSPACE_CONFIG is what
# torch.use_deterministic_algorithms asks for; PYTHONHASHSEED fixes the order of sets of strings.
REPEATABLE = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "OMP_NUM_THREADS": "1",
}

# verify may itself be started by a torchrun, whose variables the program would believe, or by
# pytest, which changes one of its own with every test.
_OUTER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTEST_CURRENT_TEST",
)


def environment(config: Config, *, extra: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The whole environment for a run described by ``config``.

    The injected ``sitecustomize`` comes first on ``PYTHONPATH``, before what the user or ``extra``
    put there. ``scratch`` becomes the temporary directory, so that leftovers go away with it.
    """
    result = {name: value for name, value in os.environ.items() if name not in _OUTER}
    result = {**REPEATABLE, **result, **QUIET, "TMPDIR": str(scratch), **extra}
    result["PYTHONHASHSEED"] = extra.get("PYTHONHASHSEED", REPEATABLE["PYTHONHASHSEED"])
    if config.simulate:
        # The compiler asks for an accelerator and finds none. One that is there is hidden.
        result["TORCHDYNAMO_DISABLE"] = "1"
        if has_accelerator(result):
            result |= dict.fromkeys(ACCELERATORS.values(), "")
    paths = [str(inject.SITE), *filter(None, [result.get("PYTHONPATH")])]
    result["PYTHONPATH"] = os.pathsep.join(paths)
    result["PYTHONDONTWRITEBYTECODE"] = "1"
    result[VARIABLE] = config.to_json()
    return result
