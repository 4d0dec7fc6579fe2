"""What asks for MindSpeed-MM's FSDP1, and what is wrong in the file of its FSDP2."""

from __future__ import annotations

import json

import pytest

from tests.configurations.writing import unmarked, write_one

FILE = "# for fsdp2\nsharding_size: {size}\nsub_modules_to_wrap:\n  - {path}\n{key}: {value}\n"


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (None, "sharding_size: auto and reshard_after_forward: true"),
        ("fsdp", "sharding_size: auto and reshard_after_forward: true"),
        ("sdp", "sharding_size: auto and reshard_after_forward: false"),
        ("no", "sharding_size: 1"),
        ("hybrid", "sharding_size: <ranks of one machine> and reshard_after_forward: true"),
        ("hybrid_zero2", "reshard_after_forward: false"),
        ("zero3", "for the strategy that is meant"),
    ],
)
@pytest.mark.parametrize("name", ["model.yaml", "model.json"])
def test_the_patch_is_left_with_what_to_write(name: str, strategy: str | None, says: str) -> None:
    given = {} if strategy is None else {"sharding_strategy": strategy}
    text = json.dumps({"model": {"patch": {"use_fsdp1": given}}}) + "\n"
    written = write_one(text, name, None)
    [found] = written.found
    assert says in found.help
    assert "--use-torch-fsdp2" in found.help
    assert unmarked(written.text) == text


@pytest.mark.parametrize(
    ("size", "path", "key", "value", "said"),
    [
        ("auto", "a.b.{0-3,5}", "reshard_after_forward", "3", ""),
        ("8", "a.b.{*}", "reshard_after_forward", "4", ""),
        ("8", "a.b.{*}", "reshard_after_forward", "true", ""),
        ("${SIZE}", "a.b.{*}", "reshard_after_forward", "3", ""),
        ("8", "a.b.C", "use_reentrant", "true", ""),
        ("8", "a.b.{*}", "reshard_after_forward", "3", "3 does not divide sharding_size"),
        ("auto", "a.b.{*}", "reshard_after_forward", "0", "0 does not divide"),
        ("8", '"a.{0-3}.{*}"', "use_reentrant", "true", "one pair of braces at most"),
        ("8", '"a.{x}"', "use_reentrant", "true", "x is neither a number nor a range"),
        ("8", "a.b.{*}", "ignored_modules", '["a.{2-1}"]', "2-1 is neither"),
        ("8", "a.b.{*}", "recompute_modules", '["{0}"]', "nothing before the braces"),
        ("8", "a.b.{*}", "moe_modules", '["a.{0-9999999}"]', "neither a number nor a range"),
    ],
)
def test_a_file_of_fsdp2_says_what_it_cannot_have(
    size: str, path: str, key: str, value: str, said: str
) -> None:
    text = FILE.format(size=size, path=path, key=key, value=value)
    written = write_one(text, "fsdp2.yaml", None)
    assert not written.problems
    assert [said in each.message for each in written.found] == ([True] if said else [])
    assert unmarked(written.text) == text
