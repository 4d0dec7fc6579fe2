"""Odd files and settings end in a sentence about them, and the other files are done."""

from __future__ import annotations

import time

import pytest

from tests.security.hostile import World


@pytest.mark.parametrize(
    "codec",
    ["rot13", "hex", "base64", "zlib", "bz2", "uu", "quopri", "punycode", "undefined", "nothing"],
)
def test_a_codec_that_is_none_costs_its_file_only(world: World, codec: str) -> None:
    (world.repo / "odd.py").write_text(f"# coding: {codec}\n# distributed.fsdp\n")
    answer = world.run("check", ".")
    assert answer.code == 2
    assert "defect" not in answer.out + answer.err
    assert "odd.py" in answer.out + answer.err
    assert "train.py" in answer.out


@pytest.mark.parametrize("codec", ["utf-7", "idna", "utf-16-le"])
def test_a_codec_of_texts_stops_nothing(world: World, codec: str) -> None:
    (world.repo / "odd.py").write_text(f"# coding: {codec}\n# distributed.fsdp\n")
    answer = world.run("check", ".")
    assert "defect" not in answer.out + answer.err
    assert "train.py" in answer.out


def test_a_file_that_is_too_large_costs_itself_only(world: World) -> None:
    (world.repo / "data.py").write_text("import torch.distributed.fsdp\n" + "x = 1\n" * 1_500_000)
    answer = world.run("check", ".")
    assert answer.code == 2
    assert "data.py: is larger than 8 MiB" in answer.err
    assert "train.py" in answer.out


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 9_000,
        "a = [\n" + "[\n" * 100_000,
        "a = " + "1" * 9_000,
        "a = " + "1" * 100_000,
        ".".join(["a"] * 50_000) + " = 1\n",
        ".".join(["a"] * 2_000) + " = 1\n",
        '[tool.fsdp-migrate]\ntarget-torch = "2.' + "1" * 5_000 + '"\n',
        "[tool.fsdp-migrate]\nexclude = ['x\\']\n",
        "[tool.fsdp-migrate]\nexclude = ['[z-a]']\n",
        "[tool.fsdp-migrate]\nexclude = ['" + "a*" * 25 + "b']\n",
    ],
)
def test_odd_settings_are_refused_by_name(world: World, text: str) -> None:
    (world.repo / "pyproject.toml").write_text(text)
    (world.repo / ("a" * 200 + ".py")).write_text("")
    begun = time.monotonic()
    answer = world.run("check", ".")
    assert time.monotonic() - begun < 10
    assert answer.code == 2
    assert "defect" not in answer.err
    assert "pyproject.toml" in answer.err or "exclude" in answer.err or "target" in answer.err


def test_a_requirement_with_too_long_a_number_says_nothing(world: World) -> None:
    long = f"torch>=2.{'1' * 5_000}"
    (world.repo / "pyproject.toml").write_text(f'[project]\ndependencies = ["{long}"]\n')
    assert world.run("check", ".").code == 1


@pytest.mark.parametrize("line", ["[z-a]", "x\\", "\0\1\udcff[", "*a" * 25 + "?b"])
def test_lines_of_ignore_files_that_are_no_patterns_are_dropped(world: World, line: str) -> None:
    (world.repo / ".gitignore").write_bytes(line.encode("utf-8", "surrogateescape") + b"\nno.py\n")
    (world.repo / ("a" * 200 + ".py")).write_text("")
    answer = world.run("check", ".")
    assert answer.code == 1
    assert "train.py" in answer.out


def test_a_notebook_with_too_long_a_number_is_none(world: World) -> None:
    text = (
        '{"nbformat": '
        + "1" * 6_000
        + ', "cells": [], "metadata": {"a": "torch.distributed.fsdp"}}'
    )
    (world.repo / "odd.ipynb").write_text(text)
    answer = world.run("check", ".")
    assert answer.code == 2
    assert "is not a notebook" in answer.out + answer.err
    assert "train.py" in answer.out
