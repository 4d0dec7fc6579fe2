"""What axolotl makes of files: ``python -m tests.configurations.released.axolotl_reads PACKAGE``.

Each line of the input has the settings of a file. What comes back is ``fsdp_config`` as axolotl's
own schema has it then, and the plugin that accelerate makes of transformers' arguments and of what
axolotl's own function puts into the environment; or what one of them says of the file. Pillow, of
which the schema wants the name of one enum, is imitated. No model is made.
"""

from __future__ import annotations

import ast
import enum
import json
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from tests.configurations import running

OTHERS = {
    "base_model": "x",
    "datasets": [{"path": "x", "type": "alpaca"}],
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "num_epochs": 1,
}


def _imitate_pillow() -> None:
    package, image = types.ModuleType("PIL"), types.ModuleType("PIL.Image")
    image.Resampling = enum.IntEnum("Resampling", "NEAREST LANCZOS")  # type: ignore[attr-defined]
    package.Image = image  # type: ignore[attr-defined]
    sys.modules |= {"PIL": package, "PIL.Image": image}


def read(settings: dict[str, Any], schema: Any, set_environment: Any) -> dict[str, Any]:
    try:
        found = schema(**OTHERS | settings)
        given = {} if found.fsdp_config is None else found.fsdp_config.model_dump(exclude_none=True)
        runs = runs_as(found, dict(given), set_environment)
    except (ValueError, AttributeError, KeyError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": found.fsdp_version, "fsdp": found.fsdp, "config": given, "runs": runs}


def runs_as(found: Any, given: dict[str, Any], set_environment: Any) -> str:
    """The plugin, as axolotl's trainer has it made."""
    from transformers import TrainingArguments

    if not given and not found.fsdp:
        return "no FSDP"
    with running.in_environment({}):
        set_environment(found)
        arguments = TrainingArguments(
            "out", fsdp=found.fsdp or True, fsdp_config=given, use_cpu=True, report_to=[]
        )
        made = running.plugin(dict(os.environ), **arguments.fsdp_plugin_args)
    offload = made.cpu_offload
    kind = type(offload).__name__
    on = kind == "CPUOffloadPolicy" or (kind == "CPUOffload" and offload.offload_params)
    return running.described(made) + (" offload" if on else "")


def _environment_setter(package: Path) -> Any:
    """axolotl's function without the rest of its module, which loads models."""
    source = (package / "axolotl" / "utils" / "trainer.py").read_text(encoding="utf-8")
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    text = ast.get_source_segment(source, functions["setup_fsdp_envs"]) or ""
    space: dict[str, Any] = {"os": os}
    exec(compile(text, "setup_fsdp_envs", "exec"), space)
    return space["setup_fsdp_envs"]


def main() -> None:
    warnings.simplefilter("ignore")
    package = Path(sys.argv[1])
    sys.path.insert(0, str(package))
    import transformers.training_args  # noqa: F401  # which looks for the real Pillow

    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        _imitate_pillow()
    from axolotl.utils.schemas.config import AxolotlInputConfig  # type: ignore[import-not-found]

    known = AxolotlInputConfig.model_fields["fsdp_config"].annotation.__args__[0]
    print(json.dumps(sorted(known.model_fields)))
    set_environment = _environment_setter(package)
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line), AxolotlInputConfig, set_environment)))


if __name__ == "__main__":
    main()
