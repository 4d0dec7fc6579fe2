"""Counts of parameters that a program only shows: a marker stands where a text may mean a part."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import logging

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

logger = logging.getLogger()


def report(net, rank, run):
    model = FSDP(net)
    {body}
    return model
"""
SUM = "sum(p.numel() for p in model.parameters() if p.requires_grad)"


def markers(*lines: str) -> int:
    source = SOURCE.format(body="\n    ".join(lines))
    _, after = migrate({"train.py": source})
    return after["train.py"].count("TODO(fsdp-migrate FSDP408)")


@pytest.mark.parametrize(
    "lines",
    [
        (f"print(f'{{{SUM} / 1e6:.1f}}M trainable parameters')",),
        (f"n = {SUM}", "logger.info('Model size: %.2f M', n / 1e6)"),
        (f"n = {SUM}", "m = round(n / 1e6, 2)", "print('parameters: {}M'.format(m))"),
        ("n = 0", "for p in model.parameters():", "    n += p.numel()", "print('params', n)"),
        (f"n = {SUM}", "if rank == 0:", "    print(f'{n:,} parameters')"),
    ],
)
def test_what_is_shown_as_the_models_is_the_models_now(lines: tuple[str, ...]) -> None:
    assert markers(*lines) == 0


@pytest.mark.parametrize(
    "lines",
    [
        (f"print({SUM})",),  # which of the two is not said
        (f"print('parameters per rank', {SUM})",),
        (f"print(f'[{{rank}}] parameters: {{{SUM}}}')",),
        (f"logger.info('sharded parameters: %d', {SUM})",),
        (f"n = {SUM}", "print('parameters', n)", "return n"),
        (f"n = {SUM}", "print('parameters', n)", "if n > 9: run.big = True"),
        (f"n = {SUM}", "print('parameters', n)", "run.count = n"),
        (f"n = {SUM}", "print('parameters', n)", "f = lambda: n"),
        (f"global n\n    n = {SUM}", "print('parameters', n)"),
        ("n = sum(1 for p in model.parameters() if p.numel() > 9)", "print('parameters', n)"),
        (f"run.log('parameters', {SUM}).wait()",),
    ],
)
def test_what_may_mean_a_part_or_is_used_is_marked(lines: tuple[str, ...]) -> None:
    assert markers(*lines) == 1
