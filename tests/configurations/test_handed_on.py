"""Settings of accelerate that a program sets for itself, or for what it starts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.planning.context import Study
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
    "words that have names": (
        'HOW = "launch"\nFLAG = "--fsdp_sharding_strategy"\n'
        + LIST.replace('"launch"', "HOW").format('FLAG, "SHARD_GRAD_OP"'),
        "write --fsdp_reshard_after_forward false",
    ),
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
    "keywords of an update": (
        "import os\n\nimport accelerate\n\n"
        "os.environ.update(ACCELERATE_USE_FSDP='true', FSDP_SHARDING_STRATEGY='2')\n",
        "FSDP_RESHARD_AFTER_FORWARD=false",
    ),
    "words for accelerate's own parser": (
        "from accelerate.commands.launch import launch_command, launch_command_parser\n\n"
        "args = launch_command_parser().parse_args(['--use_fsdp', '--fsdp_offload_params', 'true'])"
        "\nlaunch_command(args)\n",
        "--fsdp_version 2",
    ),
    "a mapping that becomes a file": (
        "config = {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': 2}}\n",
        "fsdp_reshard_after_forward: false in the place of fsdp_sharding_strategy",
    ),
    "one with keys that have no prefix, and precision": (
        "config = dict(distributed_type='FSDP', mixed_precision='bf16', fsdp_config={\n"
        "    'sharding_strategy': 'FULL_SHARD', 'use_orig_params': True})\n",
        "remove fsdp_use_orig_params",
    ),
    "accelerate's own class for a file": (
        "from accelerate.commands.config.config_args import ClusterConfig\n"
        "from accelerate.utils import DistributedType\n\n"
        "c = ClusterConfig(distributed_type=DistributedType.FSDP, fsdp_config={\n"
        "    'fsdp_sharding_strategy': 'NO_SHARD'})\n",
        "NO_SHARD",
    ),
    "a strategy from elsewhere in it": (
        "config = {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_sharding_strategy': s}}\n",
        "it is s",
    ),
    "a text that becomes a file": (
        'TEXT = """\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n"""\n',
        "fsdp_reshard_after_forward: true",
    ),
    "one that is filled in": (
        'TEXT = f"""\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {s}\n"""\n',
        "a template fills it in",
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
    "a parser without words": (
        "from accelerate.commands.launch import launch_command_parser\n\n"
        "args = launch_command_parser().parse_args([])\n# --use_fsdp\n"
    ),
    "words of something else": 'flags = ["--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"]\n',
    "variables that are read": 'import os\n\nx = os.environ["FSDP_SHARDING_STRATEGY"]\n',
    "variables that nothing of accelerate's may read": SET.format('"FULL_SHARD"').replace(
        "import accelerate\n\n", ""
    ),
    "a variable of somebody's own": 'import os\n\nos.environ["FSDP_LOG"] = "1"\n',
    "another mapping": 'x["FSDP_SHARDING_STRATEGY"] = "FULL_SHARD"\n',
    "a text about it": '"""Start it with accelerate launch --config_file fsdp.yaml."""\n',
    "a mapping of version 2": (
        "config = {'distributed_type': 'FSDP', 'fsdp_config': {'fsdp_version': 2}}\n"
    ),
    "a mapping for another kind": (
        "config = {'distributed_type': 'MULTI_GPU', 'fsdp_config': {'fsdp_sharding_strategy': 1}}\n"
    ),
    "a documentation": (
        'def f():\n    """\n    distributed_type: FSDP\n    fsdp_config:\n'
        '      fsdp_sharding_strategy: 1\n    """\n'
    ),
    "a question of what is set": (
        "x = config['distributed_type'] == 'FSDP' and config['fsdp_config']\n"
    ),
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


def test_lists_that_have_no_word_of_a_command_cost_no_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    literal = Study.literal

    def noted(study: Study, node: ast.expr, module: Module) -> Constant | None:
        asked.append(ast.unparse(node))
        return literal(study, node, module)

    monkeypatch.setattr(Study, "literal", noted)
    plain = 'def f(name="x", dim=0):\n    return [name, ("a", dim), "--use_fsdp", "launches"]\n'
    migrate({"train.py": f"{plain}\nf()\n"})
    assert not asked
    migrate({"train.py": LIST.format('"--use_fsdp"')})
    assert "'--use_fsdp'" in asked


ARGUMENTS = "from transformers import TrainingArguments\n\n"
OPTIONS = "{'fsdp': ['shard_grad_op', 'auto_wrap'], 'fsdp_config': {'sync_module_states': True}}"
IN_MAPPINGS = {
    "a dictionary": (f"{ARGUMENTS}CONFIG = {OPTIONS}\n", "reshard_after_forward: false"),
    "one that the call takes apart": (
        f"{ARGUMENTS}given = {OPTIONS}\nargs = TrainingArguments('o', **given)\n",
        "without sync_module_states",
    ),
    "a call that makes one": (
        f"{ARGUMENTS}given = dict(fsdp='full_shard auto_wrap')\n",
        "version: 2, reshard_after_forward: true",
    ),
    "an update": (f"{ARGUMENTS}given.update(fsdp='full_shard')\n", "reshard_after_forward: true"),
    "an entry": (f"{ARGUMENTS}given['fsdp'] = 'full_shard'\n", "reshard_after_forward: true"),
    "an attribute": (f"{ARGUMENTS}args.fsdp = 'full_shard'\n", "reshard_after_forward: true"),
    "a default of a mapping": (
        f"{ARGUMENTS}given.setdefault('fsdp', 'full_shard auto_wrap')\n",
        "reshard_after_forward: true",
    ),
    "setattr": (f"{ARGUMENTS}setattr(args, 'fsdp', 'shard_grad_op')\n", "forward: false"),
    "words of a command": (
        "import subprocess\n\n"
        "subprocess.run(['torchrun', 'train.py', '--fsdp', 'full_shard auto_wrap'])\n",
        "reshard_after_forward: true",
    ),
    "a command as one text": (
        "import os\n\nos.system(f\"torchrun {name} --fsdp 'shard_grad_op auto_wrap' --bf16\")\n",
        "reshard_after_forward: false",
    ),
    "a subclass of the project's own": (
        f"{ARGUMENTS}args = MyArguments(fsdp='hybrid_shard auto_wrap')\n",
        "HYBRID_SHARD",
    ),
}


@pytest.mark.parametrize("name", IN_MAPPINGS)
def test_arguments_that_are_made_elsewhere_are_left_with_what_to_write(name: str) -> None:
    source, said = IN_MAPPINGS[name]
    result, after = migrate({"train.py": source})
    [decision] = result.decisions
    assert (decision.code, decision.outcome) == ("FSDP521", Outcome.LEFT)
    assert said in f"{decision.message} {decision.help}"
    assert unmarked(str(after["train.py"])) == source
    assert str(after["train.py"]) != source


@pytest.mark.parametrize(
    "source",
    [
        f"{ARGUMENTS}CONFIG = {{'fsdp': 'full_shard', 'fsdp_config': {{'version': 2, "
        "'reshard_after_forward': True}}\n",
        f"{ARGUMENTS}CONFIG = {{'fsdp': ''}}\n",
        f"{ARGUMENTS}CONFIG = {{'fsdp': 'zero3'}}\n",
        f"{ARGUMENTS}CONFIG = {{'fsdp': True}}\n",
        f"{ARGUMENTS}args.fsdp = None\n",
        f"{ARGUMENTS}c = {{'base_model': 'x', 'sequence_len': 8, 'fsdp': 'full_shard'}}\n",
        f'{ARGUMENTS}"""Start it with --fsdp full_shard."""\n',
        f"{ARGUMENTS}parser.add_argument('--fsdp', help='as full_shard')\n",
        "CONFIG = {'fsdp': 'full_shard auto_wrap'}\n",  # nothing here reads transformers'
    ],
)
def test_mappings_of_version_2_and_of_others_stay(source: str) -> None:
    result, _ = migrate({"train.py": source})
    assert not result.decisions


def test_a_release_without_version_2_is_told_of_mappings_too(tmp_path: Path) -> None:
    source = f"{ARGUMENTS}CONFIG = {OPTIONS}\n"
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "requirements.txt").write_text("transformers<5\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", "check", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "transformers before 5.0" in done.stdout


VERL = "import subprocess\n\nsubprocess.run({})\n"
OVERRIDES = [
    VERL.format(
        '["python", "-m", "verl.trainer.main_ppo", "actor_rollout_ref.actor.strategy=fsdp"]'
    ),
    VERL.format('"python -m verl.trainer.main_ppo critic.strategy=fsdp trainer.n=1", shell=True'),
    VERL.format("""'python -m verl.trainer.main_ppo critic.strategy="fsdp"', shell=True"""),
]
OTHERS = [
    VERL.format('["python", "-m", "verl.trainer.main_ppo", "critic.strategy=fsdp2"]'),
    VERL.format('["python", "-m", "verl.trainer.main_ppo", "critic.strategy=megatron"]'),
    VERL.format('["python", "-m", "train", "critic.strategy=fsdp"]'),
]


@pytest.mark.parametrize("source", OVERRIDES)
def test_overrides_that_verl_is_handed_are_left_with_what_to_write(source: str) -> None:
    result, after = migrate({"train.py": source})
    [decision] = result.decisions
    assert (decision.code, decision.outcome) == ("FSDP550", Outcome.LEFT)
    assert "strategy=fsdp2" in decision.help
    assert unmarked(str(after["train.py"])) == source


@pytest.mark.parametrize("source", OTHERS)
def test_other_overrides_stay(source: str) -> None:
    assert not migrate({"train.py": source})[0].decisions
