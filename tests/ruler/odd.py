"""Inputs that are deliberately odd, and command lines that few type.

Of each there are the files, and the commands that run over them beside those for every input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

Files = Mapping[str, bytes]

PLAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def build(net):
    model = FSDP(net, device_id=torch.cuda.current_device())
    return model


def save(model, path):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        torch.save(model.state_dict(), path)


def step(net, batch):
    model = build(net)
    model(batch).sum().backward()
    # how long gradients may be
    model.clip_grad_norm_(1.0)
    return model
"""
# The static call takes whatever it is given: without its model's migration nothing else is safe.
HELD = f"""{PLAIN}

def peek(net):
    model = build(net)
    return FSDP.state_dict(model)
"""
TWO = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def actor(net):
    model = FSDP(net)
    model.clip_grad_norm_(1.0)
    return model


def critic(net):
    model = FSDP(net)
    model.clip_grad_norm_(2.0)
    return model
"""
IGNORED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

limit = 1.0  # fsdp-migrate: leave[FSDP401] there is nothing to ignore here


def build(net):
    return FSDP(net)  # fsdp-migrate: leave[FSDP101] the evaluation harness needs FSDP1


def other(net):
    model = FSDP(net)
    model.clip_grad_norm_(1.0)  # fsdp-migrate: leave
    return model
"""
MARKED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    # TODO(fsdp-migrate FSDP204): the limit of all-gathers is gone.
    return FSDP(net)


# TODO(fsdp-migrate FSDP401): nothing of it is left here.
limit = 1.0
"""
GUARDED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def peek(model):
    raise NotImplementedError("fsdp-migrate FSDP499: nothing is behind this guard")
    return model
"""
COMMENTS = [
    "# -*- coding: latin-1 -*-",
    '"""Wie l\u00e4uft\'s? Gr\u00f6\u00dfe in \u00b0."""',
]
RULE = '''\
"""Ours.

## Why
Because.
"""
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP700", name="own", handles=("FlatParameter",))


def decide(site, study):
    return study.left(site, RULE.code, "we keep it", "ask us")
'''
CONFIGURED = """\
[project]
name = "configured"
version = "1"
dependencies = ["torch>=2.4"]

[tool.fsdp-migrate]
ignore = ["FSDP204"]
exclude = ["third_party/"]
line-length = 60
"""


def _files(**texts: str) -> dict[str, bytes]:
    """``train=...`` is the file ``train.py``."""
    return {f"{name}.py": text.encode() for name, text in texts.items()}


def _cell(kind: str, text: str) -> dict[str, object]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, **code, "source": text.splitlines(keepends=True)}


def _notebook(*cells: dict[str, object]) -> bytes:
    whole = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    return (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode()


HEAD, _, TAIL = PLAIN.partition("\n\n\n")
NOTEBOOK = _notebook(
    _cell("markdown", "# Training\n\nwith FSDP"),
    _cell("code", f"%load_ext autoreload\n!pip list | grep torch\n{HEAD}"),
    _cell("code", TAIL),
    _cell("code", f"%%writefile build.py\n{TWO}"),
    _cell("code", "model = step(net, batch)\nmodel.clip_grad_norm_(0.5)"),
)
REPOSITORY = "$ git init -q && git add -A"
COMMITTED = f"{REPOSITORY} && git -c user.name=a -c user.email=a@example.com commit -qm first"

INPUTS: dict[str, tuple[Files, list[str]]] = {
    "a plain program": (
        _files(train=PLAIN),
        [
            "cd ..",
            "check project --jobs 1",
            "check project/train.py --format json --jobs 1",
            "rewrite project --dry-run --jobs 1",
            "explain project/train.py:6",
            "explain project/train.py:1000",
            "rewrite project -v --jobs 1",
            "undo project",
            "cd project",
            *(f"check . -o report.{suffix}" for suffix in ("json", "sarif", "md", "html", "txt")),
            "check . -o nowhere/report.txt",
            "check . --quiet --min-coverage 100",
            "check . --statistics --exit-zero",
            "NO_COLOR= FORCE_COLOR=1 check . --jobs 1",
            "NO_COLOR= FORCE_COLOR=1 rewrite . -v --jobs 1",
            "NO_COLOR= FORCE_COLOR=1 undo nowhere",
            "undo",
            "undo",
            *(f"check . --target-torch {release}" for release in ("2.5", "2.6", "2.9", "2.12")),
            "rewrite . --target-torch 2.5",
            "rewrite . --target-torch 2.6",
            "$ echo '# later' >> train.py",
            "undo",
        ],
    ),
    "syntax error beside a good file": (
        _files(train=PLAIN, broken="import torch.distributed.fsdp\n\ndef f(:\n", other="(\n"),
        ["check broken.py", "rewrite broken.py", "rewrite train.py", "undo"],
    ),
    "notebook": ({"train.ipynb": NOTEBOOK}, ["explain train.ipynb:3:5", "check train.ipynb"]),
    "notebook that is none": ({"a.ipynb": b"FSDP {", **_files(train=PLAIN)}, []),
    "empty tree": ({}, []),
    "no Python": ({"README.md": b"FSDP\n"}, ["check README.md", "rewrite README.md"]),
    "no FSDP": (_files(train="import torch\n\nmodel = torch.nn.Linear(2, 2)\n"), []),
    "only FSDP2": (
        _files(train="from torch.distributed.fsdp import fully_shard\n\nfully_shard(net)\n"),
        [],
    ),
    "of the same name": (
        _files(
            scaled="from fairscale.nn import FullyShardedDataParallel as FSDP\n\nm = FSDP(net)\n",
            own="class FSDP:\n    pass\n\n\nmodel = FSDP()\nmodel.clip_grad_norm_(1.0)\n",
        ),
        [],
    ),
    "CRLF": ({"train.py": PLAIN.replace("\n", "\r\n").encode()}, []),
    "mixed line ends": ({"train.py": PLAIN.replace(":\n", ":\r\n").encode()}, []),
    "no line end": ({"train.py": PLAIN.rstrip("\n").encode()}, []),
    "tabs": (_files(train=PLAIN.replace("    ", "\t")), []),
    "two spaces": (_files(train=PLAIN.replace("    ", "  ")), []),
    "form feeds": (_files(train=PLAIN.replace("\n\n\n", "\n\n\f\n")), []),
    "latin-1": ({"train.py": "\n".join([*COMMENTS, PLAIN]).encode("latin-1")}, []),
    "UTF-8 with a mark": ({"train.py": b"\xef\xbb\xbf" + PLAIN.encode()}, []),
    "wrong encoding": ({"train.py": PLAIN.encode() + b"# \xff\n", "b.py": TWO.encode()}, []),
    "names of files": (
        {
            "a b/\u00e9#.py": TWO.encode(),
            "a b/'\".py": PLAIN.encode(),
            "stub.pyi": b"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n",
        },
        [],
    ),
    "ignore comments": (_files(train=IGNORED, other=f"# fsdp-migrate: leave-file\n{PLAIN}"), []),
    "markers": (_files(train=MARKED), []),
    "guards": (_files(train=GUARDED), []),
    "held back": (
        _files(train=HELD),
        ["rewrite . --partial -v", "rewrite .", "rewrite . --partial", "check .", "undo ."],
    ),
    "selected": (
        _files(train=PLAIN, two=TWO),
        [
            "check . --select FSDP1 --jobs 1",
            "check . --select FSDP101,FSDP401 --format json --jobs 1",
            "check . --ignore FSDP3 --ignore FSDP4 --jobs 1",
            "rewrite . --select FSDP4 -v --jobs 1",
            "rewrite . --ignore FSDP30 -v --jobs 1",
            "undo",
            "rewrite . --ignore FSDP401 -v --jobs 1",
        ],
    ),
    "reviewed": (
        _files(train=PLAIN, two=TWO),
        [
            "rewrite . --review",
            "rewrite . --review < ?",
            "rewrite . --review --jobs 1 < n n n n n n",
            "rewrite . --review --jobs 1 < y n n n n n",
            "undo",
            "rewrite . --review --jobs 1 < n y y y y y",
            "undo",
            "NO_COLOR= FORCE_COLOR=1 rewrite . --review --jobs 1 < a a",
        ],
    ),
    "configured": (
        {
            "pyproject.toml": CONFIGURED.encode(),
            "third_party/train.py": PLAIN.encode(),
            **_files(train=PLAIN, held=HELD),
        },
        [],
    ),
    "wrongly configured": (
        {
            "pyproject.toml": b"[tool.fsdp-migrate]\ntarget_torch = '2.7'\n",
            **_files(train=PLAIN),
        },
        [],
    ),
    "a rule of its own": (
        {
            "pyproject.toml": b"[tool.fsdp-migrate]\nrule-paths = ['rules']\n",
            "rules/FSDP700_own.py": RULE.encode(),
            **_files(train=f"{PLAIN}\n\nfrom torch.distributed.fsdp import FlatParameter\n"),
        },
        ["explain", "explain FSDP700", "explain FlatParameter"],
    ),
    "repository": (
        {".gitignore": b"build/\n", "build/train.py": PLAIN.encode(), **_files(train=PLAIN)},
        [
            COMMITTED,
            "check . --format sarif --jobs 1",
            "rewrite . --dry-run --jobs 1",
            "$ echo '# later' >> train.py",
            "rewrite . --jobs 1",
            "rewrite . --allow-dirty --jobs 1",
            "undo",
        ],
    ),
    "several projects": (
        {
            "one/train.py": PLAIN.encode(),
            "two/train.py": HELD.encode(),
            "three/build.py": TWO.encode(),
            "three/train.py": b"from build import actor\n\nactor(net).clip_grad_norm_(3.0)\n",
        },
        [REPOSITORY, "check . --jobs 1", "rewrite . --dry-run --jobs 1"],
    ),
    "links": (
        {"lib/train.py": PLAIN.encode()},
        [
            "$ ln -s lib/train.py linked.py && ln -s lib below && ln lib/train.py second.py",
            "check . --jobs 1",
            "rewrite . --dry-run --jobs 1",
            "rewrite . -v --jobs 1",
        ],
    ),
    "modes": (
        _files(train=PLAIN, two=TWO),
        ["$ chmod 755 train.py && chmod 444 two.py", "rewrite .", "rewrite train.py", "undo"],
    ),
}

# Run in an empty directory.
USAGE = [
    "chek .",
    "--nothing",
    "check",
    "check nowhere",
    "check . --format nope",
    "check . --min-coverage 200",
    "check . --min-coverage much",
    "rewrite",
    "rewrite nowhere",
    "rewrite . --jobs 0",
    "rewrite . --select",
    "rewrite . --select FSDP999",
    "rewrite . --target-torch 1.13",
    "rewrite . --target-torch new",
    "rewrite . --review --dry-run",
    "explain nothing_like_it",
    "explain no_synk",
    "undo",
    "undo nowhere",
    "verify",
    "verify nowhere.py",
]
