"""Programs for GPUs on a GPU: NCCL where one rank has one, gloo where two ranks share one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.migrating import migrated

from .programs import PROGRAMS, Replaced, altered, failed

pytestmark = [
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHARED: tuple[Replaced, ...] = (
    ('local_rank = int(os.environ["LOCAL_RANK"])', "local_rank = 0"),
    (
        'dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
        'dist.init_process_group("cpu:gloo,cuda:gloo")',
    ),
    ("dist.all_reduce(mean, op=dist.ReduceOp.AVG)", "dist.all_reduce(mean)"),
    ("dist.barrier(device_ids=[local_rank])", "dist.barrier()"),
)
"""Two ranks on the one device, which NCCL does not allow."""

LARGE: tuple[Replaced, ...] = (
    ("words=61, width=32, depth=2", "words=8000, width=1024, depth=12"),
    (
        "torch.randint(0, 61, (128, 12), generator=draw)",
        "torch.randint(0, 61, (256, 257), generator=draw)",
    ),
    ("torch.ones(tokens.shape[0], 11,", "torch.ones(tokens.shape[0], 256,"),
)
"""166 million parameters, sequences of 256."""


def judged(
    program: str,
    folder: Path,
    *replaced: Replaced,
    after: tuple[Replaced, ...] = (),
    **asked: object,
) -> Report:
    """The verdict on an altered program and on what the tool makes of it."""
    before = altered(PROGRAMS / program / "before", folder / "before", replaced)
    made = folder / "migrated"
    made.mkdir()
    for name, source in migrated(before).items():
        (made / name).write_text(source)
    settings = {"script": "train.py", "max_steps": 6, "timeout": 120.0, **asked}
    return verify(Plan(before=before, after=altered(made, folder / "after", after), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("program", ["nccl", "amp", "streams"])
def test_one_rank_under_nccl(program: str, tmp_path: Path) -> None:
    report = judged(program, tmp_path, nproc=1)
    shown = text.render(report)
    assert report.verdict is Verdict.SAME, shown
    assert not report.simulated
    assert "nccl" in report.setting, report.setting
    assert "cuda" in report.setting, report.setting
    assert report.endings["after"].launcher == "fork"


def test_two_ranks_share_a_gpu(tmp_path: Path) -> None:
    report = judged("nccl", tmp_path, *SHARED)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert not report.simulated


@pytest.mark.parametrize(
    ("replaced", "gate"),
    [
        (("optimizer = torch.optim.AdamW(", "optimizer = torch.optim.Adam("), "settings"),
        (("param_dtype=dtype, ", ""), "units"),
    ],
)
def test_a_defect_is_named(replaced: Replaced, gate: str, tmp_path: Path) -> None:
    report = judged("nccl", tmp_path, *SHARED, after=(replaced,))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, gate), text.render(report)


def test_memory_is_no_more_than_before(tmp_path: Path) -> None:
    report = judged("nccl", tmp_path, *SHARED, *LARGE, timing=True)
    assert report.verdict is Verdict.SAME, text.render(report)
    said = next(gate.says for gate in report.gates if gate.key == "timing")
    print(said)
    found = re.search(r"device memory ([\d,]+) MiB before, ([\d,]+) MiB after", said)
    assert found is not None, said
    before, after = (int(number.replace(",", "")) for number in found.groups())
    assert after <= 1.05 * before, said
