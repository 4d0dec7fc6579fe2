"""Where the support module stands: members of one file's enum are not those of another's."""

from __future__ import annotations

from tests.helpers.migrating import migrate

CONFIG = """\
from torch.distributed.fsdp import ShardingStrategy


class Settings:
    strategy = ShardingStrategy.FULL_SHARD
"""
CHECK = """\
from torch.distributed.fsdp import ShardingStrategy


def is_full(settings):
    return settings.strategy == ShardingStrategy.FULL_SHARD
"""
TRAIN = """\
from configs.settings import Settings
from models.check import is_full
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net):
    assert is_full(Settings)
    return FSDP(net, sharding_strategy=Settings.strategy)
"""


def _support(after: dict[str, str]) -> list[str]:
    return sorted(p for p in after if p.endswith("fsdp2_support.py"))


def test_packages_that_one_script_imports_share_a_file_beside_it() -> None:
    _, after = migrate(
        {"run/train.py": TRAIN, "run/configs/settings.py": CONFIG, "run/models/check.py": CHECK}
    )
    assert _support(after) == ["run/fsdp2_support.py"]
    for path in ("run/train.py", "run/configs/settings.py", "run/models/check.py"):
        assert "from fsdp2_support import" in after[path]


def test_a_package_takes_the_file_of_the_one_it_imports() -> None:
    train = TRAIN.replace("configs.", "core.configs.").replace("models.", "core.models.")
    _, after = migrate(
        {
            "recipe/train.py": train,
            "recipe/step.py": "from . import train\n",
            "core/__init__.py": "",
            "core/configs/settings.py": CONFIG,
            "core/models/check.py": CHECK,
        }
    )
    assert _support(after) == ["core/fsdp2_support.py"]
    assert "from core.fsdp2_support import" in after["recipe/train.py"]


def test_projects_that_do_not_know_each_other_have_a_file_each() -> None:
    files = {
        f"{name}/{path}": text
        for name in ("first", "second")
        for path, text in {
            "train.py": TRAIN,
            "configs/settings.py": CONFIG,
            "models/check.py": CHECK,
        }.items()
    }
    _, after = migrate(files)
    assert _support(after) == ["first/fsdp2_support.py", "second/fsdp2_support.py"]
