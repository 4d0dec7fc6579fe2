"""Settings in cells: commands behind ``!`` or in ``%%bash``, files that ``%%writefile`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.configurations import engine
from fsdp_migrate.planning.result import Configured

PATH = Path("/a/train.ipynb")
LAUNCH = "accelerate launch --use_fsdp --fsdp_sharding_strategy SHARD_GRAD_OP train.py"
NEW = (
    "accelerate launch --use_fsdp --fsdp_reshard_after_forward false --fsdp_version 2 "
    "--fsdp_state_dict_type FULL_STATE_DICT train.py"
)
TRAINER = 'python a.py --fsdp "full_shard auto_wrap" --fsdp_config c.json'
YAML = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
ENV = "%env ACCELERATE_USE_FSDP=true\n%env FSDP_SHARDING_STRATEGY=FULL_SHARD"
DONE = (
    "distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2\n"
    "  fsdp_state_dict_type: FULL_STATE_DICT\n"
)


def notebook(*cells: str, language: str = "python") -> bytes:
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": c.splitlines(keepends=True)}
        for c in cells
    ]
    metadata = {"kernelspec": {"name": "k", "display_name": "k", "language": language}}
    book = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1).encode()


def migrated(
    *cells: str, files: dict[str, str] | None = None
) -> tuple[list[Configured], list[str], dict[str, str]]:
    """What became of the settings, the cells, and the other files that changed."""
    given = {PATH: notebook(*cells)}
    given |= {PATH.parent / name: text.encode() for name, text in (files or {}).items()}
    found = engine.read(given, str, PATH.parent)
    assert not found.problems
    configured, changes = found.decide(100, lambda code, key: "")
    book = json.loads(changes.pop(PATH, given[PATH]))
    others = {path.name: data.decode() for path, data in changes.items()}
    return configured, ["".join(cell["source"]) for cell in book["cells"]], others


BECOMES = [
    (f"!{LAUNCH}", f"!{NEW}"),
    (f"if True:\n    !{LAUNCH}\nprint(1)", f"if True:\n    !{NEW}\nprint(1)"),
    (f"%%bash\nset -e\n{LAUNCH}\n", f"%%bash\nset -e\n{NEW}\n"),
    (f"%%sh --no-raise-error\n{LAUNCH}", f"%%sh --no-raise-error\n{NEW}"),
    (f"%%writefile run.sh\n#!/bin/bash\n{LAUNCH}\n", f"%%writefile run.sh\n#!/bin/bash\n{NEW}\n"),
    (f"%%writefile conf/a.yaml\n{YAML.format('FULL_SHARD')}", f"%%writefile conf/a.yaml\n{DONE}"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), BECOMES)
def test_a_cell_becomes(before: str, after: str) -> None:
    _, cells, _ = migrated("import os", before)
    assert cells == ["import os", after]


STAYS = [
    f"# {LAUNCH}\n!ls",
    f'command = "{LAUNCH}"\nprint(command + "!")',
    f"%%writefile -a run.sh\n{LAUNCH}\n",
    f"%%writefile {{name}}.sh\n{LAUNCH}\n",
    f"%%timeit\n!{LAUNCH}",
    f"%%writefile launch.py\nimport os\nos.system('{LAUNCH}')\n",
    f"!{NEW}",
]


@pytest.mark.parametrize("cell", STAYS)
def test_what_starts_nothing_here_stays(cell: str) -> None:
    configured, cells, _ = migrated(cell)
    assert (configured, cells) == ([], [cell])


def test_another_language_stays() -> None:
    found = engine.read({PATH: notebook(f"!{LAUNCH}", language="R")}, str, PATH.parent)
    assert not found.groups


def test_a_command_in_a_text_is_told() -> None:
    text = f'command = "{LAUNCH}"\n!{{command}}'
    configured, cells, _ = migrated(text)
    assert "a text that something else reads" in configured[0].message
    assert cells[0] in {text, *[c for c in cells if c.endswith(text)]}


def test_what_ipython_fills_in_is_not_known() -> None:
    text = "!accelerate launch --use_fsdp --fsdp_sharding_strategy {strategy} train.py"
    configured, cells, _ = migrated(text)
    assert {each.outcome.value for each in configured} == {"left"}
    assert cells[0].endswith(text)
    assert cells[0].startswith("# TODO(fsdp-migrate FSDP510)")
    assert migrated(cells[0])[1] == cells


def test_braces_are_written_in_a_cell_of_bash_alone() -> None:
    flags = TRAINER.replace(" --fsdp_config c.json", "")
    left, cells, _ = migrated(f"!{flags}")
    assert "IPython reads braces" in left[0].message
    assert f"!{flags}" in cells[0]
    _, cells, _ = migrated(f"%%bash\n{flags}")
    assert '--fsdp_config \'{"version": 2' in cells[0]


def test_a_command_and_the_file_that_a_cell_writes_are_one_run() -> None:
    command = "!accelerate launch --config_file conf/a.yaml train.py"
    for strategy, expected in (("FULL_SHARD", DONE), ("NO_SHARD", "")):
        write = f"%%writefile conf/a.yaml\n{YAML.format(strategy)}"
        flags = command.replace("launch", "launch --fsdp_offload_params true")
        configured, cells, _ = migrated(write, flags)
        if expected:
            assert cells[0] == f"%%writefile conf/a.yaml\n{expected}"
        else:
            assert cells[1] == flags
            assert {each.outcome.value for each in configured} == {"left"}


def test_a_command_and_a_file_beside_the_notebook() -> None:
    command = "!accelerate launch --config_file a.yaml --fsdp_sharding_strategy 3 train.py"
    configured, cells, others = migrated(command, files={"a.yaml": YAML.format("FULL_SHARD")})
    assert {each.outcome.value for each in configured} == {"left"}
    assert any("train.ipynb:cell 1:1" in each.message for each in configured)
    assert cells[0].endswith(command)
    assert "fsdp_version" not in "".join(others.values())


def test_places_are_those_of_cells() -> None:
    configured, _, _ = migrated("import os", f"%%bash\n\n{LAUNCH}")
    assert {(each.cell, each.line, each.path) for each in configured} == {(2, 3, PATH)}
    line = (
        notebook("import os", f"%%bash\n\n{LAUNCH}")
        .decode()
        .splitlines()[configured[0].file_line - 1]
    )
    assert LAUNCH in line


def test_settings_wait_where_the_notebooks_python_changes() -> None:
    found = engine.read({PATH: notebook(f"!{LAUNCH}")}, str, PATH.parent)
    configured, changes = found.decide(100, lambda code, key: "", rewritten={PATH})
    assert not changes
    assert "run again" in configured[0].message


def test_broken_yaml_in_a_cell_is_told_with_its_place() -> None:
    broken = "%%writefile a.yaml\nfsdp_config:\n  fsdp_sharding_strategy: [\n"
    found = engine.read({PATH: notebook("1", broken)}, str, PATH.parent)
    assert found.problems[0].place.startswith("/a/train.ipynb:cell 2:")


def test_variables_that_ipython_sets_are_told() -> None:
    found, cells, _ = migrated(ENV, "!accelerate launch train.py")
    assert {each.outcome.value for each in found} == {"left"}
    assert any("FSDP510" in cell for cell in cells)
    assert migrated("%env FSDP_LOG=1", "x = 1")[0] == []
