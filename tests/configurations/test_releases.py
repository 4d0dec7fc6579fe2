"""Pins that differ count where the framework does the same in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.configurations import releases
from fsdp_migrate.discovery import pins

CASES = [
    ("accelerate", ("0.33.0", "1.1.1"), (1, 1, 1)),  # none has version 2
    ("accelerate", ("1.12.0", "1.10.0"), (1, 12, 0)),
    ("accelerate", ("1.3.0", "1.10.0"), ()),
    ("accelerate", ("1.7.0", "1.10.0"), ()),  # one has no sizes for HYBRID_SHARD
    ("transformers", ("4.40.0", "4.57.1"), (4, 57, 1)),
    ("transformers", ("5.2.0", "5.23.0"), ()),
    ("mosaicml", ("0.14.1", "0.20.0"), (0, 20, 0)),
    ("anything", ("1.0.0", "1.0.1"), ()),
    ("anything", ("1.0.1",), (1, 0, 1)),
]


@pytest.mark.parametrize(("name", "pins", "expected"), CASES)
def test_pins_that_differ_count_where_they_mean_the_same(
    tmp_path: Path, name: str, pins: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    for number, release in enumerate(pins):
        (tmp_path / f"{number}.sh").write_text(f"pip install {name}=={release}\n")
    assert releases.pinned(name, tmp_path / "a.yaml", tmp_path) == expected


BOUNDS = [
    ("transformers<5", (4, pins.ANY)),
    ("transformers~=4.49.0", (4, 49, pins.ANY)),
    ("transformers<5.10", ()),  # it may read the version, or not
    ("transformers<6", ()),
    ("transformers>=4.40", ()),
    ("transformers>=4.40,<4.50\ntransformers==5.24.0", (5, 24, 0)),
]


@pytest.mark.parametrize(("text", "expected"), BOUNDS)
def test_an_upper_bound_counts_where_no_release_below_it_has_version_2(
    tmp_path: Path, text: str, expected: tuple[int, ...]
) -> None:
    (tmp_path / "requirements.txt").write_text(f"{text}\n")
    assert releases.pinned("transformers", tmp_path / "a.yaml", tmp_path) == expected
