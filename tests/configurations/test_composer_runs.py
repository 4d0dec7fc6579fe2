"""composer itself trains each row before and after, on two ranks of a simulation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.configurations import lightning_runs
from tests.configurations.lightning_runs import Ran
from tests.helpers.migrating import migrate

pytestmark = [pytest.mark.train, pytest.mark.corpus, pytest.mark.timeout(1800)]
REQUIREMENTS = Path(__file__).with_name("composer.txt")
PROGRAM = Path(__file__).with_name("composer") / "trainer.py"
CONFIG = '{"fsdp": {}}'
IN_ENVIRONMENT = 'import os\n\nos.environ["FSDP_VERSION"] = "2"\n'
FIRST = "import torch\n"


@dataclass(frozen=True)
class Row:
    """The dictionary, our outcome, and what is trained before and after; ``hand`` is what somebody
    writes where it is left."""

    config: str
    outcome: str
    runs: str
    after: str
    hand: str = ""
    in_environment: bool = False  # FSDP_VERSION=2, and the dictionary as it is
    same: bool = True  # losses


FULL = '"mixed_precision": "FULL"'
REPLICATED = (
    'type("Replicated", (FSDP2Config,), {"data_parallel_replicate_degree": 2, '
    '"data_parallel_shard_degree": 1})(state_dict_type="full")'
)
MESH = (
    'FSDP2Config(device_mesh=torch.distributed.init_device_mesh("cuda", (2, 1), '
    'mesh_dim_names=("replicate", "shard")), state_dict_type="full")'
)
ROWS = [
    Row(f"{{{FULL}}}", "rewritten", "1 FULL_SHARD", "2 reshard 2"),
    Row(
        f'{{"sharding_strategy": "FULL_SHARD", {FULL}}}', "rewritten", "1 FULL_SHARD", "2 reshard 2"
    ),
    Row(
        f'{{"sharding_strategy": "SHARD_GRAD_OP", {FULL}}}',
        "rewritten",
        "1 SHARD_GRAD_OP",
        "2 keep 2",
    ),
    Row(
        f'{{"sharding_strategy": "SHARD_GRAD_OP", {FULL}}}',
        "rewritten",
        "1 SHARD_GRAD_OP",
        "2 reshard 2",
        in_environment=True,
    ),
    Row(
        '{"backward_prefetch": "BACKWARD_PRE", "limit_all_gathers": True, "use_orig_params": True, '
        f'"activation_checkpointing": False, {FULL}}}',
        "rewritten",
        "1 FULL_SHARD",
        "2 reshard 2",
    ),
    Row(
        '{"sharding_strategy": "HYBRID_SHARD", "data_parallel_shard_degree": 1, '
        f'"data_parallel_replicate_degree": 2, {FULL}}}',
        "left",
        "1 NO_SHARD",
        "2 reshard 2x1",
        REPLICATED,
        same=False,  # torch's FSDP1 does not reduce over replicas whose shard group is one rank
    ),
    Row(  # a mesh that is given is not what is trained on
        f'{{"sharding_strategy": "HYBRID_SHARD", {FULL}}}',
        "left",
        "1 FULL_SHARD",
        "2 reshard 2",
        MESH,
    ),
]


def before_and_after(row: Row) -> tuple[str, str]:
    source = PROGRAM.read_text(encoding="utf-8")
    assert source.count(CONFIG) == 1
    before = source.replace(CONFIG, f'{{"fsdp": {row.config}}}')
    result, after = migrate({"train.py": before})
    (decision,) = result.decisions
    assert decision.outcome.value == row.outcome
    if row.in_environment:
        return before, before.replace(FIRST, f"{IN_ENVIRONMENT}\n{FIRST}", 1)
    if row.hand:
        written = source.replace(CONFIG, f'{{"fsdp": {row.hand}}}')
        return before, f"from composer.utils import FSDP2Config\n{written}"
    return before, str(after["train.py"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Ran, Ran]]:
    composer = lightning_runs.installed(tmp_path_factory.mktemp("composer"), REQUIREMENTS)
    scratch = tmp_path_factory.mktemp("rows")
    programs = {}
    for number, row in enumerate(ROWS):
        for name, source in zip(("before", "after"), before_and_after(row), strict=True):
            programs[scratch / f"{number}-{name}"] = source
    runs = lightning_runs.run(programs, composer, "composer")
    return list(zip(runs[::2], runs[1::2], strict=True))


def trained_as(run: Ran) -> str:
    return "".join(re.findall(r"^trained as (.*)$", run.said, re.M)) or run.said


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_composer_does_what_the_row_says(number: int, ran: list[tuple[Ran, Ran]]) -> None:
    row, (before, after) = ROWS[number], ran[number]
    assert trained_as(before) == row.runs
    assert trained_as(after) == row.after
    assert len(before.losses) == 6
    assert len(after.losses) == 6
    assert lightning_runs.same(before, after) == row.same, f"{before.losses} {after.losses}"
    if not row.same:
        assert lightning_runs.same(ran[0][1], after)  # as all ranks train together
