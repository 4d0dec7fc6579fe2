"""Settings of accelerate that a program sets for itself, or for what it starts."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

SET = 'import os\n\nimport accelerate\n\nos.environ["FSDP_SHARDING_STRATEGY"] = {}\n'
LIST = 'import subprocess\n\nsubprocess.run(["accelerate", "launch", {}, "train.py"])\n'

LEFT = {
    "a variable": (SET.format('"SHARD_GRAD_OP"'), "FSDP_RESHARD_AFTER_FORWARD=false"),
    "several": (
        f"{SET.format(repr('FULL_SHARD'))}os.environ.setdefault('FSDP_USE_ORIG_PARAMS', 'true')\n",
        "remove FSDP_USE_ORIG_PARAMS",
    ),
    "a dictionary": (
        'env = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "2"}\n',
        "FSDP_RESHARD_AFTER_FORWARD=false",
    ),
    "one that is not known": (SET.format("choice()"), "it is choice()"),
    "what has no counterpart": (SET.format('"NO_SHARD"'), "NO_SHARD"),
    "a list of words": (
        LIST.format('"--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"'),
        "--fsdp_reshard_after_forward true",
    ),
    "with equals signs": (
        LIST.format('"--use_fsdp", "--fsdp_sharding_strategy=SHARD_GRAD_OP"'),
        "--fsdp_reshard_after_forward false",
    ),
    "a value from elsewhere": (
        LIST.format('"--use_fsdp", "--fsdp_sharding_strategy", strategy'),
        "it is not written out",
    ),
    "one text": (
        'import os\n\nos.system("accelerate launch --use_fsdp --fsdp_offload_params true a.py")\n',
        "--fsdp_version 2",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_handed_on_is_left_with_what_to_write(name: str) -> None:
    source, said = LEFT[name]
    result, after = migrate({"train.py": source})
    [decision] = result.decisions
    assert decision.outcome is Outcome.LEFT
    assert decision.code == "FSDP510"
    assert said in f"{decision.message} {decision.help}"
    assert unmarked(str(after["train.py"])) == source
    assert str(after["train.py"]) != source


KEPT = {
    "version 2": (
        'import os\n\nos.environ["FSDP_VERSION"] = "2"\n'
        'os.environ["FSDP_RESHARD_AFTER_FORWARD"] = "true"\n'
    ),
    "flags of version 2": LIST.format('"--use_fsdp", "--fsdp_version", "2"'),
    "a launcher without FSDP": LIST.format('"--multi_gpu"'),
    "words of something else": 'flags = ["--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"]\n',
    "variables that are read": 'import os\n\nx = os.environ["FSDP_SHARDING_STRATEGY"]\n',
    "variables that nothing of accelerate's may read": SET.format('"FULL_SHARD"').replace(
        "import accelerate\n\n", ""
    ),
    "a variable of somebody's own": 'import os\n\nos.environ["FSDP_LOG"] = "1"\n',
    "another mapping": 'x["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD"\n',
    "a text about it": '"""Start it with accelerate launch --config_file fsdp.yaml."""\n',
    "off": 'import os\n\nos.environ["ACCELERATE_USE_FSDP"] = "false"\n',
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str) -> None:
    result, after = migrate({"train.py": KEPT[name]})
    assert not result.decisions
    assert str(after.get("train.py", KEPT[name])) == KEPT[name]


def test_what_accelerate_sets_for_itself_is_no_site() -> None:
    source = KEPT["a variable of somebody's own"] + SET.format('"FULL_SHARD"')
    files = {"accelerate/__init__.py": "", "accelerate/launch.py": source}
    result, _ = migrate(files)
    assert not result.decisions
    assert migrate({"launch.py": source})[0].decisions
