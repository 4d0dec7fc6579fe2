"""Paths with braces: what they stand for, what they may not be, and the way back."""

from __future__ import annotations

import random

import pytest

from fsdp_migrate.configurations import brace_paths
from fsdp_migrate.configurations.brace_paths import PathError

MODULES = {f"model.layers.{n}{end}" for n in range(12) for end in ("", ".mlp")} | {"model.head"}


@pytest.mark.parametrize(
    ("path", "numbers", "end"),
    [
        ("model.layers.{0-3}", [0, 1, 2, 3], ""),
        ("model.layers.{0-1,5, 7 - 8}", [0, 1, 5, 7, 8], ""),
        ("model.layers.{3,1,1-2}.mlp", [1, 2, 3], ".mlp"),
        ("model.layers.{*}.mlp", [*range(12)], ".mlp"),
        ("model.layers{11}", [11], ""),
    ],
)
def test_a_path_stands_for_modules(path: str, numbers: list[int], end: str) -> None:
    expected = [f"model.layers.{number}{end}" for number in numbers]
    assert brace_paths.expanded(path, MODULES) == expected


def test_a_path_without_braces_is_one_module() -> None:
    assert brace_paths.expanded("model.head", MODULES) == ["model.head"]


@pytest.mark.parametrize(
    "path",
    [
        "model.layers.{0-12}",
        "model.layer",
        "model.head.{*}",
        "model.layers.{}",
        "model.layers.{a}",
        "model.layers.{3-1}",
        "model.layers.{0-}",
        "model.layers.{0",
        "model.layers.}0{",
        "model.{*}.{*}",
        "{*}",
        "model.layers.{0-99999999}",
        "",
    ],
)
def test_a_path_that_is_none_or_fits_nothing_is_an_error(path: str) -> None:
    with pytest.raises(PathError):
        brace_paths.expanded(path, MODULES)


def test_numbers_that_make_a_run_are_a_range() -> None:
    names = [f"a.{n}" for n in (0, 1, 2, 5, 7, 8)] + ["b.0.c", "b.1.c", "head", "x.3"]
    assert brace_paths.compact(names) == ["a.{0-2,5,7-8}", "b.{0-1}.c", "head", "x.3"]


def test_numbers_with_zeros_in_front_stay_as_they_are() -> None:
    assert brace_paths.compact(["a.00", "a.01"]) == ["a.00", "a.01"]


@pytest.mark.parametrize("seed", range(30))
def test_drawn_modules_come_back(seed: int) -> None:
    draw = random.Random(seed)
    words = ["encoder", "layers", "mlp", *map(str, range(12))]
    names = {
        ".".join(["model", *(draw.choice(words) for _ in range(draw.randrange(4)))])
        for _ in range(draw.randrange(1, 40))
    }
    paths = brace_paths.compact(sorted(names))
    again = [module for path in paths for module in brace_paths.expanded(path, names)]
    assert sorted(again) == sorted(names)
    assert len(paths) <= len(names)
