"""YAML and JSON: what changes is what should, and all else comes back byte for byte."""

from __future__ import annotations

import difflib
import json

import pytest
import yaml

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.writing import unmarked, write, write_one

HEAD = "distributed_type: FSDP\n"


def difference(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line for line in lines if line[0] in "+-"]


CHANGED = {
    "a value, a key and the order": (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  b: 1\n",
        f"{HEAD}fsdp_config:\n  fsdp_reshard_after_forward: true\n  b: 1\n  fsdp_version: 2\n",
    ),
    "comments behind and around": (
        f"# top\n{HEAD}fsdp_config:  # why\n  # how\n  fsdp_sharding_strategy: FULL_SHARD  # z3\n"
        "  b: 1 # one\n\n# next\nz: 2\n",
        f"# top\n{HEAD}fsdp_config:  # why\n  # how\n  fsdp_reshard_after_forward: true  # z3\n"
        "  b: 1 # one\n  fsdp_version: 2\n\n# next\nz: 2\n",
    ),
    "quotes": (
        f"{HEAD}'fsdp_config':\n  \"fsdp_sharding_strategy\": 'FULL_SHARD'\n",
        f"{HEAD}'fsdp_config':\n  \"fsdp_reshard_after_forward\": true\n  fsdp_version: 2\n",
    ),
    "the indentation of the block": (
        f"{HEAD}fsdp_config:\n      fsdp_sharding_strategy: FULL_SHARD\n",
        f"{HEAD}fsdp_config:\n      fsdp_reshard_after_forward: true\n      fsdp_version: 2\n",
    ),
    "sorted keys": (
        f"{HEAD}fsdp_config:\n  fsdp_a: 1\n  fsdp_b: 2\n  fsdp_z: 3\n",
        f"{HEAD}fsdp_config:\n  fsdp_a: 1\n  fsdp_b: 2\n  fsdp_version: 2\n  fsdp_z: 3\n",
    ),
    "no line end at the end": (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD",
        f"{HEAD}fsdp_config:\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2",
    ),
    "the last entry goes, without a line end": (
        f"{HEAD}fsdp_config:\n  b: 1\n  fsdp_use_orig_params: true",
        f"{HEAD}fsdp_config:\n  b: 1\n  fsdp_version: 2",
    ),
    "an entry with its own comment": (
        f"{HEAD}fsdp_config:\n  b: 1\n  # prefetch early\n  fsdp_backward_prefetch: X\n  c: 1\n",
        f"{HEAD}fsdp_config:\n  b: 1\n  c: 1\n  fsdp_version: 2\n",
    ),
    "an entry below a heading": (
        f"{HEAD}fsdp_config:\n  # all of it\n  fsdp_use_orig_params: true\n  c: 1\n",
        f"{HEAD}fsdp_config:\n  # all of it\n  c: 1\n  fsdp_version: 2\n",
    ),
    "one empty line of two": (
        f"{HEAD}fsdp_config:\n  b: 1\n\n  fsdp_use_orig_params: true\n\n  c: 1\n",
        f"{HEAD}fsdp_config:\n  b: 1\n\n  c: 1\n  fsdp_version: 2\n",
    ),
    "a list as the value of what goes": (
        f"{HEAD}fsdp_config:\n  b: 1\n  fsdp_backward_prefetch:\n  - x\n  - y\n  c: 1\n",
        f"{HEAD}fsdp_config:\n  b: 1\n  c: 1\n  fsdp_version: 2\n",
    ),
    "braces": (
        f"{HEAD}fsdp_config: {{fsdp_sharding_strategy: FULL_SHARD, b: 1}}  # why\n",
        f"{HEAD}fsdp_config: {{fsdp_reshard_after_forward: true, b: 1, fsdp_version: 2}}  # why\n",
    ),
    "braces whose entries go": (
        f"{HEAD}fsdp_config: {{fsdp_backward_prefetch: X, b: 1, fsdp_use_orig_params: true}}\n",
        f"{HEAD}fsdp_config: {{b: 1, fsdp_version: 2}}\n",
    ),
    "braces of which nothing stays": (
        f"{HEAD}fsdp_config: {{fsdp_backward_prefetch: X, fsdp_use_orig_params: true}}\n",
        f"{HEAD}fsdp_config: {{fsdp_version: 2}}\n",
    ),
    "several documents": (
        f"---\na: 1\n---\n{HEAD}fsdp_config:\n  b: 1\n...\n---\nc: 3\n",
        f"---\na: 1\n---\n{HEAD}fsdp_config:\n  b: 1\n  fsdp_version: 2\n...\n---\nc: 3\n",
    ),
    "a mark at the beginning": (
        "\ufefffsdp_config:\n  b: 1\ndistributed_type: FSDP\n",
        "\ufefffsdp_config:\n  b: 1\n  fsdp_version: 2\ndistributed_type: FSDP\n",
    ),
    "letters of everywhere": (
        f"# größe 日 🎉\n{HEAD}fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD # ü\n  é: 日本\n",
        f"# größe 日 🎉\n{HEAD}fsdp_config:\n  fsdp_reshard_after_forward: true # ü\n  é: 日本\n"
        "  fsdp_version: 2\n",
    ),
    "a text with what looks like keys": (
        f"{HEAD}script: |\n  fsdp_config:\n    fsdp_sharding_strategy: FULL_SHARD\n\nfsdp_config:\n"
        "  b: 1\n",
        f"{HEAD}script: |\n  fsdp_config:\n    fsdp_sharding_strategy: FULL_SHARD\n\nfsdp_config:\n"
        "  b: 1\n  fsdp_version: 2\n",
    ),
    "anchors elsewhere": (
        f"base: &base {{x: 1}}\n{HEAD}other: *base\nfsdp_config:\n  b: 1\n",
        f"base: &base {{x: 1}}\n{HEAD}other: *base\nfsdp_config:\n  b: 1\n  fsdp_version: 2\n",
    ),
    "a template in another value": (
        f"{HEAD}output: {{{{ name }}}}/x\nfsdp_config:\n  b: {{{{ b }}}}\n",
        f"{HEAD}output: {{{{ name }}}}/x\nfsdp_config:\n  b: {{{{ b }}}}\n  fsdp_version: 2\n",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_what_should_changes(name: str, newline: str) -> None:
    before, after = (text.replace("\n", newline) for text in CHANGED[name])
    written = write_one(before)
    assert written.text == after
    assert not written.problems
    assert written.outcomes() == {Outcome.REWRITTEN}
    again = write_one(after)
    assert again.text == after
    assert not again.found


LEFT = {
    "a value that is filled in": f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: ${{STRATEGY}}\n",
    "a value of Hydra": f'{HEAD}fsdp_config:\n  fsdp_sharding_strategy: "${{oc.env:S,FULL}}"\n',
    "a value of Jinja": f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: {{{{ s }}}}\n",
    "a block that counts elsewhere": (
        f"{HEAD}fsdp_config: &f\n  fsdp_sharding_strategy: FULL_SHARD\nother: *f\n"
    ),
    "a block that is written elsewhere": (
        f"x: &f\n  fsdp_sharding_strategy: FULL_SHARD\n{HEAD}fsdp_config: *f\n"
    ),
    "a merge": (f"x: &f\n  fsdp_use_orig_params: true\n{HEAD}fsdp_config:\n  <<: *f\n  b: 1\n"),
    "a value that counts elsewhere": (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: &s FULL_SHARD\nx: *s\n"
    ),
    "statements of a template": (
        f"{HEAD}fsdp_config:\n{{% if a %}}\n  fsdp_sharding_strategy: FULL_SHARD\n{{% endif %}}\n"
    ),
    "a value over several lines": (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy:\n    FULL_SHARD\n  b: >-\n    x\n"
    ).replace("FULL_SHARD", "FULL\n    SHARD"),
    "a comment in braces": (f"{HEAD}fsdp_config: {{b: 1,  # one\n  fsdp_use_orig_params: true}}\n"),
    "no such strategy": f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: NO_SHARD\n  b: 1\n",
    "an odd key": f"{HEAD}fsdp_config:\n  ? [a, b]\n  : 1\n  fsdp_use_orig_params: true\n",
    "a tag": f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: !env FULL_SHARD\n",
    "the new key is there": (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
        "  fsdp_reshard_after_forward: x\n"
    ),
    "carriage returns alone": f"{HEAD}fsdp_config:\n  b: 1\n".replace("\n", "\r"),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is_with_a_reason(name: str) -> None:
    written = write_one(LEFT[name])
    assert not written.problems
    assert written.outcomes() == {Outcome.LEFT}
    assert unmarked(written.text) == LEFT[name]
    assert [each for each in written.found if not each.held and each.message]
    again = write_one(written.text)
    assert again.text == written.text, "a marker is not added twice"
    assert again.outcomes() == {Outcome.LEFT}


BROKEN = {
    "a tab": (f"{HEAD}fsdp_config:\n\tb: 1\n", 3),
    "an open bracket": (f"{HEAD}fsdp_config: [1\nb: 2\n", 3),
    "an open quote": (f'{HEAD}fsdp_config:\n  b: "x\n', 3),
    "an indentation": (f"{HEAD}fsdp_config:\n  b: 1\n    c: 2\n", 4),
    "too deep": (f"{HEAD}fsdp_config:\n  b: {'[' * 3000}{']' * 3000}\n", 1),
    "no character": (f"{HEAD}fsdp_config:\n  b: \x00\n", 3),
    "a key twice": (f"{HEAD}fsdp_config:\n  b: 1\n  b: 2\n", 4),
    "the block twice": (f"{HEAD}fsdp_config:\n  b: 1\nfsdp_config:\n  b: 2\n", 4),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_the_line_and_the_others_are_done(name: str) -> None:
    text, line = BROKEN[name]
    good = CHANGED["quotes"]
    written = write({"bad.yaml": text, "good.yaml": good[0]})
    assert [(p.display, p.line) for p in written.problems] == [("bad.yaml", line)]
    assert "column" in written.problems[0].message
    assert written.after == {"bad.yaml": text, "good.yaml": good[1]}


@pytest.mark.parametrize(
    "text",
    [
        "fsdp_config:\n  sharding_strategy: FULL_SHARD\n  mixed_precision: PURE\nmax_seq_len: 8\n",
        "trainer:\n  strategy: fsdp\n",
        "output_dir: x\nfsdp_config:\n  _target_: own.wrap\n  fp16: true\n",
        "output_dir: x\nlearning_rate: 1\nfsdp_config:\n  own_key: 1\n  min_num_params: 2\n",
        "output_dir: x\nfsdp_config:\n",
        "- fsdp\n- fsdp_config\n",
        "fsdp_config\n",
        "",
        "# fsdp_config:\n",
        "name: fsdp test\non: push\njobs:\n  fsdp:\n    steps: []\n",
        "fsdp: true\nlearning: 1\n",
        "distributed_type: FSDP\nx: 1\n",
        "{{ fsdp_config }}\n",
    ],
)
def test_not_touched(text: str) -> None:
    written = write_one(text, migrate=None)
    assert (written.text, written.found, written.problems) == (text, [], [])


JSON = {
    "a key that transformers does not know": (
        '{"fsdp_colour": 1, "fsdp_use_orig_params": true}',
        None,
    ),
    "lines": (
        '{\n    "fsdp_sharding_strategy": "FULL_SHARD",\n    "fsdp_use_orig_params": true\n}\n',
        '{\n    "fsdp_reshard_after_forward": true,\n    "fsdp_version": 2\n}\n',
    ),
    "tabs and CRLF": (
        '{\r\n\t"fsdp_sharding_strategy": "FULL_SHARD",\r\n\t"fsdp_min_num_params": 1\r\n}',
        '{\r\n\t"fsdp_reshard_after_forward": true,\r\n\t"fsdp_min_num_params": 1,'
        '\r\n\t"fsdp_version": 2\r\n}',
    ),
    "inside": (
        '{"output_dir": "\\u00e9", "fsdp_config": {"fsdp_use_orig_params": true, "xla": [1, {}]}}',
        '{"output_dir": "\\u00e9", "fsdp_config": {"xla": [1, {}], "fsdp_version": 2}}',
    ),
}


@pytest.mark.parametrize("name", JSON)
def test_json(name: str) -> None:
    before, after = JSON[name]
    written = write_one(before, "ds.json")
    assert written.text == (before if after is None else after)
    json.loads(written.text)
    assert write_one(written.text, "ds.json").text == written.text


def test_json_that_is_left_has_no_marker() -> None:
    text = '{\n  "fsdp_sharding_strategy": "NO_SHARD"\n}\n'
    written = write_one(text, "fsdp.json")
    assert written.text == text
    assert written.outcomes() == {Outcome.LEFT}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"fsdp_config": {"a": }}', 1),
        ("{\n'fsdp_config': 1}", 2),
        ('{"use_cpu": 1, "fsdp_config": {"fsdp_version": 1,\n"fsdp_version": 2}}', 2),
    ],
)
def test_broken_json(text: str, line: int) -> None:
    written = write_one(text, "x.json")
    assert [p.line for p in written.problems] == [line]
    assert "column" in written.problems[0].message
    assert written.text == text


def test_a_marker_stands_above_what_is_to_be_reviewed_and_its_comments() -> None:
    text = f"{HEAD}fsdp_config:\n  # kind\n  fsdp_state_dict_type: FULL\n"
    written = write_one(text)
    assert "  # TODO(fsdp-migrate FSDP510): May be big.\n  # kind\n" in written.text
    assert written.outcomes() == {Outcome.REWRITTEN, Outcome.REVIEW}
    assert yaml.safe_load(written.text)["fsdp_config"]["fsdp_version"] == 2


def test_a_marker_in_braces_stands_above_the_block() -> None:
    written = write_one(f"{HEAD}fsdp_config: {{fsdp_sharding_strategy: NO_SHARD}}\n")
    assert written.text.startswith(f"{HEAD}# TODO(fsdp-migrate FSDP510): Nothing is like it.")


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}fsdp_config:  # fsdp-migrate: leave\n  fsdp_use_orig_params: true\n",
        f"{HEAD}fsdp_config:\n  fsdp_use_orig_params: true  # fsdp-migrate: leave[FSDP510]\n",
        f"{HEAD}fsdp_config:\n  # fsdp-migrate: leave[FSDP51] so\n  fsdp_use_orig_params: 1\n",
        f"# fsdp-migrate: leave-file\n{HEAD}fsdp_config:\n  fsdp_use_orig_params: true\n",
    ],
)
def test_ignored(text: str) -> None:
    written = write_one(text)
    assert written.text == text
    assert any(each.ignore is not None for each in written.found)
    assert all(each.ignore is not None or each.held for each in written.found)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}a: 'x # fsdp-migrate: leave-file'\nfsdp_config:\n  b: 1\n",
        f"{HEAD}fsdp_config:\n  b: 1  # fsdp-migrate: leave[FSDP1]\n",
        f"{HEAD}a: 1  # fsdp-migrate: leave\nfsdp_config:\n  b: 1\n",
    ],
)
def test_not_ignored(text: str) -> None:
    written = write_one(text)
    assert written.outcomes() == {Outcome.REWRITTEN}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "config/actor/dp.yaml",
            "strategy: fsdp\nfsdp_config:\n  fsdp_size: 1\n  forward_prefetch: true\n",
        ),
        (
            "config/critic/dp.yaml",
            "strategy: fsdp\nmodel:\n  fsdp_config:\n    fsdp_size: 1\n    use_orig_params: x\n",
        ),
        ("config/reward_model/dp.yaml", "strategy: fsdp\n"),
        ("generation.yaml", "actor:\n  strategy: fsdp\n  fsdp_config:\n    fsdp_size: -1\n"),
    ],
)
def test_a_file_of_one_of_verls_groups(path: str, text: str) -> None:
    written = write_one(text, path, None)
    assert "strategy: fsdp2" in written.text
    assert "prefetch" not in unmarked(written.text)
    assert write_one(written.text, path, None).found == []


def test_a_strategy_of_another_group_is_none_of_verls() -> None:
    text = "strategy: fsdp\nlr: 1\n"
    assert write_one(text, "config/trainer/fsdp.yaml", None).found == []


def test_a_long_file_is_said() -> None:
    data = "rest:\n" + "  - some words\n" * 8_000
    text = f"fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n{data}"
    written = write_one(text, migrate=None)
    assert written.text == text
    assert {(each.line, each.outcome) for each in written.found} == {(2, Outcome.LEFT)}
    assert any("100,000" in each.message for each in written.found)
    as_json = json.dumps({"fsdp_config": {"fsdp_sharding_strategy": 1}, "rest": ["x" * 100_000]})
    assert write_one(as_json, "data.json", None).found == [], "no line of its own: it is data"
    indented = json.dumps(json.loads(as_json), indent=1)
    assert write_one(indented, "data.json", None).outcomes() == {Outcome.LEFT}


def test_verls_critic_and_engine_of_0_9_are_read() -> None:
    text = """\
critic:
  strategy: fsdp
  fsdp:
    forward_prefetch: true
    wrap_policy:
      transformer_layer_cls_to_wrap: [Block]
engine:
  strategy: fsdp
  fsdp_size: -1
  use_orig_params: false
"""
    after = unmarked(write_one(text, migrate=None).text)
    assert (
        after
        == """\
critic:
  strategy: fsdp2
  fsdp:
    wrap_policy:
      transformer_layer_cls_to_wrap: [Block]
engine:
  strategy: fsdp2
  fsdp_size: -1
"""
    )


def test_an_engine_of_another_kind_is_not_verls() -> None:
    text = "engine:\n  strategy: fsdp\n  batch: 8\n"
    assert write_one(text, migrate=None).text == text
