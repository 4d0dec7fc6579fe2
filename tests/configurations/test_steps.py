"""Shell and variables in workflows, and in what describes jobs in the same way."""

from __future__ import annotations

import pytest
import yaml

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.writing import unmarked, write, write_one

NAME = ".github/workflows/train.yml"
LAUNCH = "accelerate launch"
OLD, NEW = "--fsdp_sharding_strategy FULL_SHARD", "--fsdp_reshard_after_forward true"
HEAD = "on: push\njobs:\n  a:\n    runs-on: x\n    steps:\n      - uses: actions/checkout@v4\n"

CHANGED = {
    "a literal block": (
        f"{HEAD}      - name: it's one\n        run: |  # why\n          set -e\n"
        f"          {LAUNCH} {OLD} train.py\n      - run: echo 'x'\n",
        f"{HEAD}      - name: it's one\n        run: |  # why\n          set -e\n"
        f"          {LAUNCH} {NEW} --fsdp_version 2 train.py\n      - run: echo 'x'\n",
    ),
    "a line": (
        f"{HEAD}      - run: {LAUNCH} {OLD} --fsdp_use_orig_params true t.py\n        env: {{}}\n",
        f"{HEAD}      - run: {LAUNCH} {NEW} --fsdp_version 2 t.py\n        env: {{}}\n",
    ),
    "a flag a line": (
        f"{HEAD}      - run: |-\n          {LAUNCH} \\\n            {OLD} \\\n            "
        'train.py --name ${{ matrix.name }} --out "${{ github.workspace }}/x"\n',
        f"{HEAD}      - run: |-\n          {LAUNCH} \\\n            {NEW} \\\n            "
        "--fsdp_version 2 \\\n            "
        'train.py --name ${{ matrix.name }} --out "${{ github.workspace }}/x"\n',
    ),
    "a list of commands": (
        f"train:\n  script:\n    - echo a\n    - {LAUNCH} {OLD} train.py\n",
        f"train:\n  script:\n    - echo a\n    - {LAUNCH} {NEW} --fsdp_version 2 train.py\n",
    ),
    "variables": (
        f"{HEAD}      - run: python train.py\n        env:\n          A: 1\n"
        "          FSDP_SHARDING_STRATEGY: FULL_SHARD  # why\n          FSDP_USE_ORIG_PARAMS: 1\n",
        f"{HEAD}      - run: python train.py\n        env:\n          A: 1\n"
        "          FSDP_RESHARD_AFTER_FORWARD: true  # why\n          FSDP_VERSION: 2\n",
    ),
    "variables of a service": (
        "services:\n  a:\n    environment:\n      FSDP_SHARDING_STRATEGY: FULL_SHARD\n",
        "services:\n  a:\n    environment:\n      FSDP_RESHARD_AFTER_FORWARD: true\n"
        "      FSDP_VERSION: 2\n",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_only_what_should_changes(name: str) -> None:
    before, after = CHANGED[name]
    written = write_one(before, NAME)
    assert written.text == after
    assert written.outcomes() == {Outcome.REWRITTEN}
    again = write_one(after, NAME)
    assert (again.text, again.found) == (after, [])


LEFT = {
    "a folded text": f"{HEAD}      - run: >\n          {LAUNCH} {OLD}\n          train.py\n",
    "a quoted text": f'{HEAD}      - run: "{LAUNCH} {OLD} train.py"\n',
    "filled in": HEAD
    + f"      - run: |\n          {LAUNCH} --fsdp_sharding_strategy ${{{{ matrix.s }}}} t.py\n",
    "a variable that is filled in": f"{HEAD}        env:\n"
    "          FSDP_SHARDING_STRATEGY: ${{ matrix.s }}\n",
    "a list of variables": "spec:\n  env:\n    - name: FSDP_SHARDING_STRATEGY\n      value: X\n",
    "variables in two places": "env:\n  FSDP_SHARDING_STRATEGY: FULL_SHARD\njobs:\n  a:\n"
    "    env:\n      FSDP_USE_ORIG_PARAMS: 1\n",
    "variables and flags": f"env:\n  FSDP_SHARDING_STRATEGY: FULL_SHARD\n"
    f"run: {LAUNCH} {OLD} t.py\n",
    "no such strategy": HEAD
    + f"      - run: |\n          a\n          {LAUNCH} --fsdp_sharding_strategy NO_SHARD t.py\n",
    "no such strategy in a line": HEAD
    + f"      - run: {LAUNCH} --fsdp_sharding_strategy NO_SHARD t.py\n",
}


@pytest.mark.parametrize("name", LEFT)
def test_left_with_a_reason(name: str) -> None:
    written = write_one(LEFT[name], NAME)
    assert written.outcomes() == {Outcome.LEFT}
    assert unmarked(written.text) == LEFT[name]
    yaml.safe_load(written.text)
    assert write_one(written.text, NAME).text == written.text


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}      # {LAUNCH} {OLD} train.py\n",
        f"{HEAD}      - run: |\n          # {LAUNCH} {OLD} train.py\n          echo fsdp\n",
        f"{HEAD}      - run: bash fsdp_version.sh\n",
        "env:\n  FSDP_VERSION: 1\n  FSDP_OF_MINE: 2\n".replace("OF_MINE", "CPU_RAM_X"),
        "run: [fsdp_config]\n",
        "script:\n  fsdp_config: 1\n",
    ],
)
def test_not_touched(text: str) -> None:
    written = write_one(text, NAME, migrate=None)
    assert (written.text, written.found, written.problems) == (text, [], [])


def test_a_step_and_the_file_it_names_are_one_run() -> None:
    files = {
        NAME: f"{HEAD}      - run: {LAUNCH} --config_file conf/c.yaml {OLD} a.py\n",
        "conf/c.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_use_orig_params: true\n",
    }
    after = write(files).after
    assert after[NAME] == files[NAME].replace(OLD, NEW)
    assert "fsdp_version: 2" in after["conf/c.yaml"]


def test_a_comment_in_a_step_ignores_its_command() -> None:
    text = (
        f"{HEAD}      - run: |\n          # fsdp-migrate: leave[FSDP510]\n"
        f"          {LAUNCH} {OLD} train.py\n"
    )
    written = write_one(text, NAME)
    assert written.text == text
    assert [each.ignoring for each in written.found] == ["FSDP510"] * len(written.found)
    assert written.found


IN_LISTS = {
    "arguments of a container": (
        "spec:\n  containers:\n  - command:\n    - accelerate\n    - launch\n    args:\n"
        "    - --use_fsdp\n    - --fsdp_sharding_strategy=FULL_SHARD\n    - t.py\n"
    ),
    "a command in brackets": 'command: ["accelerate", "launch", "--use_fsdp", "t.py"]\n',
    "a command of a service": (
        "services:\n  a:\n    command: accelerate launch --use_fsdp --fsdp_offload_params true\n"
    ),
}


@pytest.mark.parametrize("name", IN_LISTS)
def test_flags_that_a_file_has_in_its_own_way_are_told(name: str) -> None:
    found = write({"job.yaml": IN_LISTS[name]}, None)
    assert {(c.code, c.outcome) for c in found.found} == {("FSDP510", Outcome.LEFT)}
    assert unmarked(found.text) == IN_LISTS[name]


@pytest.mark.parametrize(
    "text",
    [
        'command: ["accelerate", "launch", "--use_fsdp", "--fsdp_version", "2", "t.py"]\n',
        "# accelerate launch --use_fsdp\na: 1\n",
        'command: ["accelerate", "launch", "--multi_gpu", "t.py"]\n',
    ],
)
def test_other_commands_in_lists_are_not(text: str) -> None:
    assert not write({"job.yaml": text}, None).found
