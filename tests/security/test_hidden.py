"""Code that a repository hides from us is found all the same."""

from __future__ import annotations

import json

import pytest

from tests.security.hostile import World


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.\\\nfsdp import FullyShardedDataParallel as F\nm = F(net)\n",
        "from torch.distributed\\\r\n.fsdp import FullyShardedDataParallel as F\nm = F(net)\n",
        "from torch.distributed\\\n import fsdp\nm = fsdp.FullyShardedDataParallel(net)\n",
        "import torch.distributed as d\nm = (d  # x\n .fsdp  # y\n"
        " .FullyShardedDataParallel(net))\n",
    ],
)
def test_fsdp1_is_found_across_line_breaks(world: World, source: str) -> None:
    (world.repo / "train.py").write_bytes(source.encode())
    answer = world.run("check", ".")
    assert answer.code == 1
    assert "no FSDP1" not in answer.out


IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(net)\n"
WIDE = str.maketrans({c: chr(ord(c) + 0xFEE0) for c in "fFdDsSpP"})


@pytest.mark.parametrize(
    "data",
    [
        IMPORT.translate(WIDE).replace("\uff44i", "di").encode(),
        IMPORT.replace("fsdp", "\uff46sdp").replace("Fully", "\uff26ully").encode(),
        b"# coding: utf-7\n" + IMPORT.replace("S", "+AFM-").replace("fsdp", "f+AHM-dp").encode(),
        b"# coding: unicode_escape\n" + IMPORT.replace("s", "\\x73").replace("S", "\\x53").encode(),
    ],
)
def test_fsdp1_is_found_or_refused_in_every_spelling(world: World, data: bytes) -> None:
    (world.repo / "train.py").write_bytes(data)
    answer = world.run("check", ".")
    assert answer.code in {1, 2}
    assert "train.py" in answer.out + answer.err


@pytest.mark.parametrize("form", [3, 4])
def test_fsdp1_is_found_in_the_escapes_of_notebooks(world: World, form: int) -> None:
    (world.repo / "train.py").unlink()
    code = (
        json.dumps(IMPORT).replace("F", "\\u0046").replace("f", "\\u0066").replace("s", "\\u0073")
    )
    cell = '{"cell_type": "code", "metadata": {}, "outputs": [], "source": ' + code + "}"
    text = '{"cells": [' + cell + '], "metadata": {}, "nbformat": ' + f"{form}" + "}"
    (world.repo / "train.ipynb").write_text(text)
    answer = world.run("check", ".")
    assert answer.code in {1, 2}
    assert "train.ipynb" in answer.out + answer.err


@pytest.mark.parametrize("config", ["", "home = /usr/bin\n"])
def test_a_file_of_virtual_environments_hides_no_source(world: World, config: str) -> None:
    (world.repo / "src").mkdir()
    (world.repo / "train.py").rename(world.repo / "src" / "train.py")
    (world.repo / "src" / "pyvenv.cfg").write_text(config)
    answer = world.run("check", ".")
    assert answer.code == 1
    assert "train.py" in answer.out
