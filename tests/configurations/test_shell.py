"""Shell scripts and their like."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.writing import ROOT, unmarked, write, write_one

LAUNCH = "accelerate launch"
OLD = "--fsdp_sharding_strategy FULL_SHARD"
NEW = "--fsdp_reshard_after_forward true"

CHANGED = {
    "one line": (
        "run.sh",
        f"{LAUNCH} --use_fsdp {OLD} train.py --fsdp_x 1\n",
        f"{LAUNCH} --use_fsdp {NEW} --fsdp_version 2 train.py --fsdp_x 1\n",
    ),
    "equals signs and quotes": (
        "run.sh",
        f"{LAUNCH} --fsdp_sharding_strategy='FULL_SHARD' --fsdp_use_orig_params=true a.py\n",
        f"{LAUNCH} --fsdp_reshard_after_forward=true --fsdp_version=2 a.py\n",
    ),
    "hyphens": (
        "run.sh",
        f"{LAUNCH} --fsdp-sharding-strategy FULL_SHARD a.py\n",
        f"{LAUNCH} --fsdp-reshard-after-forward true --fsdp-version 2 a.py\n",
    ),
    "a flag a line": (
        "run.slurm",
        f"#!/bin/bash\n#SBATCH -N 2\n{LAUNCH} \\\n    --num_machines $N \\\n"
        f"    --fsdp_backward_prefetch X \\\n    {OLD} \\\n    a.py \\\n    --lr 1\n",
        f"#!/bin/bash\n#SBATCH -N 2\n{LAUNCH} \\\n    --num_machines $N \\\n    "
        f"{NEW} \\\n    --fsdp_version 2 \\\n    a.py \\\n    --lr 1\n",
    ),
    "under srun, with a module": (
        "run.sh",
        f"srun -n 2 {LAUNCH} --fsdp_use_orig_params true --use_fsdp -m pkg.train\n",
        f"srun -n 2 {LAUNCH} --use_fsdp --fsdp_version 2 -m pkg.train\n",
    ),
    "in a function": (
        "run.sh",
        f"go() {{\n  if a; then\n    {LAUNCH} {OLD} a.py\n  fi\n}}\n",
        f"go() {{\n  if a; then\n    {LAUNCH} {NEW} --fsdp_version 2 a.py\n  fi\n}}\n",
    ),
    "an array": (
        "run.sh",
        f'ARGS=(\n  {OLD}  # why\n  --fsdp_x 1\n)\n{LAUNCH} "${{ARGS[@]}}" a.py\n',
        f"ARGS=(\n  {NEW}  # why\n  --fsdp_x 1\n  --fsdp_version 2\n)\n"
        f'{LAUNCH} "${{ARGS[@]}}" a.py\n',
    ),
    "exported variables": (
        "run.sh",
        "export A=1\nexport FSDP_SHARDING_STRATEGY=FULL_SHARD  # a\n"
        "export FSDP_USE_ORIG_PARAMS=1\n",
        "export A=1\nexport FSDP_RESHARD_AFTER_FORWARD=true  # a\nexport FSDP_VERSION=2\n",
    ),
    "several in one statement": (
        "run.sh",
        "export FSDP_SHARDING_STRATEGY=FULL_SHARD A=1 FSDP_USE_ORIG_PARAMS=1\npython a.py\n",
        "export FSDP_RESHARD_AFTER_FORWARD=true A=1\nexport FSDP_VERSION=2\npython a.py\n",
    ),
    "before a command": (
        "run.sh",
        "FSDP_SHARDING_STRATEGY=FULL_SHARD A=1 python a.py\n",
        "FSDP_RESHARD_AFTER_FORWARD=true FSDP_VERSION=2 A=1 python a.py\n",
    ),
    "a file of variables": (
        ".env",
        "KEY=secret value $x\nFSDP_SHARDING_STRATEGY='FULL_SHARD'\nB=2",
        "KEY=secret value $x\nFSDP_RESHARD_AFTER_FORWARD='true'\nFSDP_VERSION=2\nB=2",
    ),
    "an image": (
        "Dockerfile",
        "FROM a\nENV A=1 FSDP_SHARDING_STRATEGY=FULL_SHARD\nRUN x\n"
        f"CMD {LAUNCH} --fsdp_use_orig_params 1 --use_fsdp a.py\n",
        "FROM a\nENV A=1 FSDP_RESHARD_AFTER_FORWARD=true\nENV FSDP_VERSION=2\nRUN x\n"
        f"CMD {LAUNCH} --use_fsdp --fsdp_version 2 a.py\n",
    ),
    "a recipe": (
        "Makefile",
        f"N = 2\ntrain: a.py\n\t@{LAUNCH} {OLD} $< --x $(N)\n",
        f"N = 2\ntrain: a.py\n\t@{LAUNCH} {NEW} --fsdp_version 2 $< --x $(N)\n",
    ),
    "a recipe over several lines": (
        "Makefile",
        f"train:\n\t-{LAUNCH} \\\n\t\t{OLD} \\\n\t\ta.py\nnext:\n\techo\n",
        f"train:\n\t-{LAUNCH} \\\n\t\t{NEW} \\\n\t\t--fsdp_version 2 \\\n\t\ta.py\nnext:\n\techo\n",
    ),
    "letters of everywhere": (
        "run.sh",
        f"echo 'größe 日本 🎉'\n{LAUNCH} {OLD} a.py # ü\n",
        f"echo 'größe 日本 🎉'\n{LAUNCH} {NEW} --fsdp_version 2 a.py # ü\n",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_only_what_should_changes(name: str) -> None:
    file, before, after = CHANGED[name]
    written = write_one(before, file)
    assert written.text == after
    assert written.outcomes() == {Outcome.REWRITTEN}
    again = write_one(after, file)
    assert (again.text, again.found) == (after, [])


LEFT = {
    "a variable": f"{LAUNCH} --fsdp_sharding_strategy $S a.py\n",
    "a variable in quotes": f'{LAUNCH} --fsdp_sharding_strategy "${{S:-FULL_SHARD}}" a.py\n',
    "a command": f"{LAUNCH} --fsdp_sharding_strategy $(cat s) a.py\n",
    "no such strategy": f"set -e\n{LAUNCH} \\\n  --fsdp_sharding_strategy NO_SHARD \\\n  a.py\n",
    "a text": f'CMD="{LAUNCH} {OLD} a.py"\neval $CMD\n',
    "a text for another shell": f"ssh x '{LAUNCH} {OLD} a.py'\n",
    "a file that is written": (
        f"cat > c.yaml <<EOF\nfsdp_config:\n  fsdp_sharding_strategy: 1\nEOF\n{LAUNCH} a.py\n"
    ),
    "a flag twice": (f"{LAUNCH} {OLD} {OLD} a.py\n"),
    "an unknown configuration": (f"{LAUNCH} --config_file $C {OLD} a.py\n"),
    "a configuration that is not here": (f"{LAUNCH} --config_file c.yaml {OLD} a.py\n"),
    "two settings of a variable": (
        "if a; then\n  export FSDP_SHARDING_STRATEGY=FULL_SHARD\nelse\n"
        "  export FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP\nfi\n"
    ),
    "inside of a command": (f"x=$({LAUNCH} {OLD} a.py)\necho $({LAUNCH} --fsdp_x 1 a.py)\n"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is_with_a_reason(name: str) -> None:
    written = write_one(LEFT[name], "run.sh")
    assert written.outcomes() >= {Outcome.LEFT}
    if name != "inside of a command":
        assert written.outcomes() == {Outcome.LEFT}
        assert unmarked(written.text) == LEFT[name]
    again = write_one(written.text, "run.sh")
    assert again.text == written.text, "a marker is not added twice"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f"torchrun train.py {OLD} --use_fsdp\n"),
        ("run.sh", "python train.py --fsdp --fsdp_config x.json\n"),
        ("run.sh", "python train.py --fsdp true\n"),
        ("run.sh", f"# {LAUNCH} {OLD} train.py\n"),
        ("run.sh", f"{LAUNCH} --config_file fsdp.yaml train.py\n"),
        ("run.sh", "FSDP_SHARDING_STRATEGY=FULL_SHARD\nfoo --s $FSDP_SHARDING_STRATEGY\n"),
        ("run.sh", "export FSDP_VERSION=1\nexport MY_FSDP=2\n"),
        ("run.sh", "export FSDP_CPU_RAM_EFFICIENT_LOADING=1\npython train.py\n"),
        (".env", "FSDPKEY=1\n#FSDP_SHARDING_STRATEGY=1\n"),
        ("run.sh", "this is ((( no shell fsdp\n"),
        ("Makefile", "all:\n\techo fsdp\n"),
        ("Dockerfile", "FROM fsdp\nRUN echo fsdp \\\n  && x\n"),
    ],
)
def test_not_touched(name: str, text: str) -> None:
    written = write_one(text, name, migrate=None)
    assert (written.text, written.found, written.problems) == (text, [], [])


def test_a_command_and_the_file_it_names_are_one_run() -> None:
    config = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
    script = f"cd x\n{LAUNCH} --config_file conf/c.yaml --fsdp_sharding_strategy {{}} a.py\n"

    def both(inside: str, flag: str) -> dict[str, str]:
        files = {"conf/c.yaml": config.format(inside), "scripts/a.sh": script.format(flag)}
        return write(files).after

    assert both("FULL_SHARD", "SHARD_GRAD_OP") == {
        "conf/c.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: true\n"
        "  fsdp_version: 2\n",
        "scripts/a.sh": f"cd x\n{LAUNCH} --config_file conf/c.yaml "
        "--fsdp_reshard_after_forward false a.py\n",
    }
    for pair in (("NO_SHARD", "FULL_SHARD"), ("FULL_SHARD", "NO_SHARD")):
        after = both(*pair)
        assert unmarked(after["conf/c.yaml"]) == config.format(pair[0])
        assert unmarked(after["scripts/a.sh"]) == script.format(pair[1])


def test_an_array_and_the_flags_beside_it_are_one_run() -> None:
    text = (
        f"ARGS=(--fsdp_state_dict_type SHARDED --use_fsdp)\n"
        f'{LAUNCH} {OLD} "${{ARGS[@]}}" a.py\n{LAUNCH} "${{ARGS[@]}}" {OLD} b.py\n'
    )
    written = write_one(text, "run.sh")
    after = unmarked(written.text)
    assert after.count("--fsdp_version 2") == 1
    assert after.startswith("ARGS=(--fsdp_state_dict_type SHARDED --use_fsdp --fsdp_version 2)")
    assert after.count(NEW) == 2
    refused = text.replace(f"{OLD} b.py", "--fsdp_sharding_strategy NO_SHARD b.py")
    assert unmarked(write_one(refused, "run.sh").text) == refused


def test_what_one_command_needs_and_another_has_is_not_added_for_both() -> None:
    text = (
        f"ARGS=(--use_fsdp --fsdp_sharding_strategy FULL_SHARD)\n"
        f'{LAUNCH} "${{ARGS[@]}}" a.py\n'
        f'{LAUNCH} --fsdp_state_dict_type SHARDED_STATE_DICT "${{ARGS[@]}}" b.py\n'
    )
    written = write({"run.sh": text}, migrate=None)
    assert written.outcomes() == {Outcome.LEFT}
    assert unmarked(written.text) == text


def test_what_a_file_gets_and_a_command_overrides_is_no_conflict() -> None:
    files = {
        "c.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n",
        "a.sh": f"{LAUNCH} --config_file c.yaml --fsdp_state_dict_type SHARDED_STATE_DICT a.py\n",
    }
    written = write(files, migrate=None)
    assert Outcome.LEFT not in written.outcomes()
    assert "fsdp_state_dict_type: FULL_STATE_DICT\n" in written.after["c.yaml"]


def test_flags_beside_a_text_with_flags_stay() -> None:
    text = f'MORE="--fsdp_use_orig_params 1"\n{LAUNCH} $MORE {OLD} a.py\n'
    assert unmarked(write_one(text, "run.sh").text) == text


def test_variables_before_a_command_belong_to_those_exported() -> None:
    text = "export FSDP_USE_ORIG_PARAMS=1\nFSDP_SHARDING_STRATEGY=FULL_SHARD python a.py\n"
    written = write_one(text, "run.sh")
    assert written.text == "export FSDP_VERSION=2\nFSDP_RESHARD_AFTER_FORWARD=true python a.py\n"


def test_secrets_in_the_line_of_a_setting_are_in_no_report() -> None:
    line = "export HF_TOKEN=hunter2 FSDP_SHARDING_STRATEGY=NO_SHARD"
    written = write_one(f"{line}\n", "run.sh")
    assert "hunter2" not in repr(written.found)
    assert {len(each.source) for each in written.found} == {len(line)}


def test_transformers_reads_a_file_beside_its_flag() -> None:
    files = {
        "a.sh": 'torchrun t.py --fsdp "full_shard auto_wrap" --fsdp_config f.json\n',
        "f.json": '{"fsdp_use_orig_params": true, "min_num_params": 1}\n',
    }
    written = write(files)
    assert written.after["f.json"] == '{"min_num_params": 1, "fsdp_version": 2}\n'
    assert written.after["a.sh"] == files["a.sh"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f'echo "a\n b" && {LAUNCH} --fsdp_sharding_strategy NO_SHARD t.py\n'),
        ("run.sh", f"cat <<EOF > r.sh\n{LAUNCH} {OLD} t.py\nEOF\n"),
        ("run.sh", f"python - <<'EOF'\nrun('{LAUNCH} {OLD} t.py')\nEOF\n"),
    ],
)
def test_no_marker_stands_inside_of_a_text(name: str, text: str) -> None:
    written = write_one(text, name)
    assert written.text == text
    assert written.outcomes() == {Outcome.LEFT}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "env A=1 FSDP_SHARDING_STRATEGY=FULL_SHARD python t.py\n"),
        ("run.sh", "docker run -e FSDP_SHARDING_STRATEGY=FULL_SHARD image\n"),
        ("Dockerfile", "ENV FSDP_SHARDING_STRATEGY FULL_SHARD\n"),
        ("Makefile", "export FSDP_SHARDING_STRATEGY = FULL_SHARD\n"),
    ],
)
def test_variables_that_are_given_in_other_ways_are_said(name: str, text: str) -> None:
    written = write_one(text, name)
    assert written.outcomes() == {Outcome.LEFT}
    assert unmarked(written.text) == text
    assert write_one(written.text, name).text == written.text


def test_a_secret_in_the_value_of_a_setting_is_in_no_message() -> None:
    text = "ACCELERATE_USE_FSDP=true\nFSDP_SHARDING_STRATEGY=FULL_SHARD HF_TOKEN=hf_abcdef\n"
    found = write({".env": text}, None)
    assert found.found
    assert "hf_abcdef" not in str(found.found)
    assert found.after[".env"].count("hf_abcdef") == 1


def test_secrets_are_in_no_report() -> None:
    written = write_one("TOKEN=hunter2\nFSDP_SHARDING_STRATEGY=NO_SHARD\n", ".env")
    assert "hunter2" not in repr(written.found)


@pytest.mark.parametrize(
    "start", ["torchrun -m pkg.train", "python -m pkg.train", "deepspeed pkg/train.py", "swift sft"]
)
def test_transformers_flags_behind_any_start(start: str) -> None:
    text = f'{start} --fsdp "full_shard auto_wrap" --fsdp_config fsdp.json\n'
    written = write({"a.sh": text, "fsdp.json": '{"use_orig_params": true}\n'}, migrate=None)
    after = written.after["fsdp.json"]
    assert after == '{"version": 2, "reshard_after_forward": true}\n'
    assert write({**written.after, "a.sh": text}, migrate=None).found == []


VERL = "python -m verl.trainer.main_ppo actor_rollout_ref.{}.fsdp_config.param_offload=True"
ROLE = "actor_rollout_ref.actor.strategy=fsdp2"


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (
            "critic.fsdp.param_offload=True critic.fsdp.use_orig_params=True",
            "critic.strategy=fsdp2",
        ),
        ("engine.strategy=fsdp engine.forward_prefetch=True", "engine.strategy=fsdp2"),
        ("engine=fsdp engine.fsdp_size=8", "engine.strategy=fsdp2"),
    ],
)
def test_verls_newer_places_are_read(words: str, written: str) -> None:
    after = write_one(f"torchrun -m verl.trainer.sft_trainer {words}\n", "run.sh", None).text
    assert written in after
    assert "use_orig_params" not in after
    assert "forward_prefetch" not in after


def test_verls_reference_alone_shows_that_the_actor_is_fsdp() -> None:
    for role in ("actor", "ref"):
        assert ROLE in write_one(VERL.format(role) + "\n", "a.sh", None).text


def test_verls_own_copy_without_fsdp2_keeps_its_settings() -> None:
    text = VERL.format("actor") + "\n"
    old = {ROOT / "verl/workers/fsdp_workers.py": b"strategy == 'fsdp'  # fsdp2 is to come"}
    new = {path: data + b"\\nstrategy == 'fsdp2'" for path, data in old.items()}
    other = {ROOT / "mine/workers/fsdp_workers.py": b""}
    assert ROLE not in write({"a.sh": text}, migrate=None, sources=old).text
    assert write({"a.sh": text}, migrate=None, sources=old).outcomes() == {Outcome.LEFT}
    for sources in (new, other, {}):
        assert ROLE in write({"a.sh": text}, migrate=None, sources=sources).text


TORCHRUN = 'torchrun t.py \\\n    --fsdp "full_shard auto_wrap" \\\n'
LAYERS = "    --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \\\n"
TAIL = "    --tf32 True\n"
INLINE = (
    '    --fsdp_config \'{"fsdp_version": 2, "fsdp_reshard_after_forward": true, '
    '"fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}\' \\\n'
)


def test_transformers_flags_without_a_file_get_one_written_out() -> None:
    written = write_one(TORCHRUN + LAYERS + TAIL, "a.sh", None)
    assert unmarked(written.text) == TORCHRUN + INLINE + TAIL
    assert written.outcomes() == {Outcome.REWRITTEN, Outcome.REVIEW}
    again = write_one(written.text, "a.sh", None)
    assert (again.text, again.found) == (written.text, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '\'{"backward_prefetch": "x", "offload": 1}\'',
            '\'{"offload": 1, "version": 2, "reshard_after_forward": true}\'',
        ),
        ("'{\"version\": 1}'", '\'{"version": 2, "reshard_after_forward": true}\''),
        (
            '\'{"version": 1, "transformer_layer_cls_to_wrap": ["A", "B"]}\'',
            '\'{"version": 2, "transformer_layer_cls_to_wrap": ["A", "B"], '
            '"reshard_after_forward": true}\'',
        ),
    ],
)
@pytest.mark.parametrize("equals", [" ", "="])
def test_transformers_json_in_a_command(before: str, after: str, equals: str) -> None:
    text = f"torchrun t.py --fsdp full_shard --fsdp_config{equals}{{}} --lr 1\n"
    written = write_one(text.format(before), "a.sh", None)
    assert unmarked(written.text) == text.format(after)
    assert write_one(written.text, "a.sh", None).found == []


@pytest.mark.parametrize(
    "text",
    [
        "torchrun t.py --fsdp full_shard --fsdp_config '{\"version\": $V}'\n",
        "torchrun t.py --fsdp full_shard --fsdp_config \"{'version': 1}\"\n",
        "torchrun t.py --fsdp full_shard --fsdp_config '{\"xla\": {}}'\n",
        "CMD=\"torchrun t.py --fsdp 'full_shard'\"\n",
    ],
)
def test_transformers_json_that_is_left(text: str) -> None:
    written = write_one(text, "a.sh", None)
    assert written.outcomes() == {Outcome.LEFT}
    assert unmarked(written.text) == text


@pytest.mark.parametrize(("flag", "told"), [("--bf16", 1), ("--fp16 True", 1), ("--bf16 False", 0)])
def test_mixed_precision_among_the_flags_is_for_review(flag: str, told: int) -> None:
    text = "torchrun t.py --fsdp full_shard {} --lr 1 " + flag + "\n"
    config = "--fsdp_config '{\"cpu_ram_efficient_loading\": true}'"
    written = write_one(text.format(config), "a.sh", None)
    assert ("--lr 1 " + flag) in written.text
    assert [each.name for each in written.found if "buffers" in each.message] == (
        [flag.split(maxsplit=1)[0].strip("-")] * told
    )
    assert write_one(written.text, "a.sh", None).found == []


CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
NEW_CONFIG = (
    "distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2\n"
)


def read_by(start: str, name: str, flags: str = OLD) -> dict[str, str]:
    """A script that has a configuration's name from a variable, and the configuration."""
    script = f"{start}{LAUNCH} --config_file {name} {flags} a.py\n"
    return {"conf/c.yaml": CONFIG, "scripts/a.sh": script}


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("C=conf/c.yaml\n", "$C"),
        ("export C='conf/c.yaml'\n", '"${C}"'),
        ("N=c\n", "conf/$N.yaml"),
        ("D=conf\nN=c\n", "${D}/${N}.yaml"),
    ],
)
def test_a_configuration_that_one_plain_assignment_names_is_known(start: str, name: str) -> None:
    written = write(read_by(start, name))
    assert written.after["conf/c.yaml"] == NEW_CONFIG
    assert written.after["scripts/a.sh"] == f"{start}{LAUNCH} --config_file {name} {NEW} a.py\n"


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("", "$C"),
        ("", "conf/$1.yaml"),
        ("", "$(dirname $0)/c.yaml"),
        ("C=${1:-conf/c.yaml}\n", "$C"),
        ("C=conf/c.yaml\nif a; then\n  C=conf/d.yaml\nfi\n", "$C"),
        ("if a; then\n  C=conf/c.yaml\nfi\n", "$C"),
        ("C=conf/c.yaml\nread C\n", "${C}"),
    ],
)
def test_a_variable_in_the_command_holds_both(start: str, name: str) -> None:
    files = read_by(start, name)
    written = write(files)
    assert {path: unmarked(text) for path, text in written.after.items()} == files
    assert written.outcomes() == {Outcome.LEFT}
    line = 1 + start.count("\n")
    assert any(f"which configuration scripts/a.sh:{line} reads" in f.message for f in written.found)


def test_a_file_that_the_name_does_not_fit_is_another_run() -> None:
    files = {**read_by("", "conf/$N/c.yaml"), "conf/x/c.yaml": CONFIG}
    written = write(files)
    assert written.after["conf/c.yaml"] == NEW_CONFIG
    assert unmarked(written.after["conf/x/c.yaml"]) == CONFIG
    assert unmarked(written.after["scripts/a.sh"]) == files["scripts/a.sh"]


def test_a_command_of_version_2_holds_no_file() -> None:
    files = read_by("", "$C", "--fsdp_version 2")
    written = write(files)
    assert written.after["conf/c.yaml"] == NEW_CONFIG
    assert written.after["scripts/a.sh"] == files["scripts/a.sh"]


@pytest.mark.parametrize(
    ("inside", "flag", "held", "cause"),
    [
        ("NO_SHARD", "FULL_SHARD", "scripts/a.sh", "conf/c.yaml:3"),
        ("FULL_SHARD", "$S", "conf/c.yaml", "scripts/a.sh:1"),
    ],
)
def test_what_waits_names_what_holds_it(inside: str, flag: str, held: str, cause: str) -> None:
    files = read_by("", "conf/c.yaml", f"--fsdp_sharding_strategy {flag} --fsdp_use_orig_params 1")
    files["conf/c.yaml"] = CONFIG.replace("FULL_SHARD", inside) + "  fsdp_use_orig_params: true\n"
    written = write(files)
    assert {path: unmarked(text) for path, text in written.after.items()} == files
    waits = [f.message for f in written.found if f.display == held or f.held]
    assert waits
    assert any(cause in message for message in waits)
