"""What axolotl's own schema makes of files: ``python axolotl_reads.py PACKAGE < files.jsonl``.

Each line has the settings of a file. What comes back is the version and ``fsdp_config`` as axolotl
has it then, or what it says of the file. Pillow, of which the schema wants the name of one enum, is
imitated.
"""

from __future__ import annotations

import enum
import json
import sys
import types
from typing import Any

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


def read(settings: dict[str, Any], schema: Any) -> dict[str, Any]:
    try:
        found = schema(**OTHERS | settings)
    except ValueError as error:
        return {"error": str(error)}
    config = found.fsdp_config
    given = {} if config is None else config.model_dump(exclude_none=True)
    return {"version": found.fsdp_version, "fsdp": found.fsdp, "config": given}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    import transformers.training_args  # noqa: F401  # which looks for the real Pillow

    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        _imitate_pillow()
    from axolotl.utils.schemas.config import AxolotlInputConfig  # type: ignore[import-not-found]

    known = AxolotlInputConfig.model_fields["fsdp_config"].annotation.__args__[0]
    print(json.dumps(sorted(known.model_fields)))
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line), AxolotlInputConfig)))


if __name__ == "__main__":
    main()
