"""Which files are read, and which of them could hold FSDP1."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from fsdp_migrate.discovery import search
from fsdp_migrate.discovery.project_paths import PathProblem

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
USE = f"{IMPORT}\n\ndef build(model):\n    return FSDP(model)\n"


def lay(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below ``root``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def repository(root: Path, files: Mapping[str, str | bytes]) -> Path:
    (root / ".git" / "info").mkdir(parents=True)
    return lay(root, files)


def candidates(*paths: Path, exclude: tuple[str, ...] = (), base: Path | None = None) -> set[str]:
    """Candidates relative to the first path's directory."""
    found = search.find(paths, exclude, base)
    top = paths[0] if paths[0].is_dir() else paths[0].parent
    return {p.relative_to(top).as_posix() for p in found.candidates}


# -- look-alikes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "from fairscale.nn import FullyShardedDataParallel as FSDP\nm = FSDP(model)\n",
        "from fairscale.nn.data_parallel import FullyShardedDataParallel\n",
        "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\nFSDP(m)\n",
        "from megatron.core.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(m)\n",
        "from mypackage import FSDP\nmodel = FSDP(model)\n",
        "class FSDP:\n    pass\n\nmodel = FSDP()\n",
        "fsdp = 'torch.distributed.fsdp'  # words are no imports\n",
        "# torch.distributed.fsdp.FullyShardedDataParallel\nx = 1\n",
        'NOTE = """\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"""\n',
        "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n",
        "from torch.distributed._composable.fsdp import fully_shard\nfully_shard(model)\n",
        "parser.add_argument('--fsdp', action='store_true')\n",
    ],
)
def test_what_only_looks_like_fsdp1_is_no_site(tmp_path: Path, source: str) -> None:
    run = session.run([lay(tmp_path, {"train.py": source})])
    assert not run.result.decisions
    assert not run.result.changes
    assert not run.result.problems


def test_a_project_of_look_alikes_is_not_even_parsed(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": "from fairscale.nn import FullyShardedDataParallel as FSDP\n("})
    run = session.run([tmp_path])
    assert not run.found.candidates
    assert not run.result.problems, "a file that is none of our business has no problems of ours"


@pytest.mark.parametrize(
    "statement",
    [
        "import torch.distributed.fsdp",
        "import torch.distributed.fsdp as fsdp",
        "from torch.distributed import fsdp",
        "from torch.distributed import (\n    fsdp,\n)",
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy",
        "from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType",
        "import torch\nwrap = torch.distributed.fsdp.FullyShardedDataParallel",
        "from torch import distributed\nwrap = distributed.fsdp.FullyShardedDataParallel",
    ],
)
def test_every_spelling_of_the_import_is_a_candidate(tmp_path: Path, statement: str) -> None:
    assert candidates(lay(tmp_path, {"a.py": statement + "\n"})) == {"a.py"}


def test_files_that_meet_an_fsdp_model_are_read_with_it(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "wrapping.py": USE,
            "train.py": "from wrapping import build\nimport loop\n\nloop.run(build(net))\n",
            "loop.py": "def run(model):\n    model.clip_grad_norm_(1.0)\n",
            "beside.py": "def run(model):\n    model.clip_grad_norm_(1.0)\n",
            "saves.py": "def run(model):\n    return model.state_dict()\n",
            "other/unrelated.py": "def run(model):\n    model.clip_grad_norm_(1.0)\n",
            "plain.py": "x = 1\n",
        },
    )
    found = search.find([tmp_path])
    assert {p.name for p in found.candidates} == {"wrapping.py"}
    assert {p.name for p in found.others} == {"train.py", "loop.py", "beside.py"}
    assert {Path(p).name for p in found.library} == {"saves.py", "unrelated.py", "plain.py"}
    assert found.seen == 7


def test_files_that_build_on_one_beside_a_wrap_are_read(tmp_path: Path) -> None:
    clips = "clip_grad_norm_(self.model.parameters(), 1.0)"
    step = f"    def step(self):\n        torch.nn.utils.{clips}\n"
    lay(
        tmp_path,
        {
            "train/wrapping.py": USE,
            "train/trainer.py": f"class Trainer:\n{step}",
            "tuning/pairs.py": "from ..train.trainer import Trainer\n\n"
            f"class Pairs(Trainer):\n{step}",
            "tuning/plain.py": f"class Plain:\n{step}",
            "tuning/names.py": "from ..train.trainer import Trainer\n\nNAMES = [Trainer]\n",
        },
    )
    found = search.find([tmp_path])
    assert {p.name for p in found.others} == {"trainer.py", "pairs.py", "names.py"}
    assert {Path(p).name for p in found.library} == {"plain.py"}


def test_files_that_hand_a_model_on_are_read(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": f"{USE}import loop\nfrom scaler import Scaler as S\n\nscale = S()\n"
            "loop.run(build(net), scale)\nloop.other(1)\n",
            "loop.py": "from steps import step\nfrom more import count\n\n"
            "def run(model, scaler):\n    count(1)\n    step(model, scaler)\n",
            "steps.py": "import tools as t\n\n"
            "def step(model, s):\n    s(model)\n    t.save(model)\n",
            "tools.py": "def save(model):\n    return model.state_dict()\n",
            "scaler.py": "class Scaler:\n"
            "    def __call__(self, model):\n        model.clip_grad_norm_(1.0)\n",
            "more.py": "def count(x):\n    return step(x)\n",
        },
    )
    found = search.find([tmp_path])
    assert {p.name for p in found.candidates} == {"train.py"}
    assert {p.name for p in found.others} == {"loop.py", "steps.py", "tools.py", "scaler.py"}
    assert {Path(p).name for p in found.library} == {"more.py"}
    changed = {p.name for p in session.run([tmp_path]).changed}
    assert changed == {"train.py", "tools.py", "scaler.py"}


@pytest.mark.parametrize("remark", ["\u2026", "\uff0c", "\u00b2", "\u00e9"])
def test_files_are_read_as_they_are_however_they_are_searched(tmp_path: Path, remark: str) -> None:
    loop = f"# a remark{remark}\ndef run(model):\n    model.clip_grad_norm_(1.0)\n"
    cell = {"cell_type": "code", "source": loop.splitlines(keepends=True)}
    notebook = json.dumps({"cells": [cell], "nbformat": 4, "metadata": {}}, ensure_ascii=False)
    files = {
        "train.py": f"{USE}import loop\n\nloop.run(build(net))\n",
        "loop.py": loop,
        "loop.ipynb": notebook,
    }
    lay(tmp_path, files)
    found = search.find([tmp_path])
    assert found.others == {
        tmp_path / name: files[name].encode() for name in ("loop.ipynb", "loop.py")
    }
    found = session.run([tmp_path])
    assert found.result.changes[tmp_path / "loop.py"].decode().count(remark) == 1


def test_prose_that_looks_like_an_import_is_searched_as_it_is(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "train.py": f"{USE}import loop\n\nloop.run(build(net))\n",
            "loop.py": '"""Steps:\n\n    from tools import save as [it\n"""\nimport tools\n\n'
            "def run(model):\n    tools.save(model)\n",
            "tools.py": "def save(model):\n    return model.state_dict()\n",
        },
    )
    assert {p.name for p in search.find([tmp_path]).others} >= {"loop.py", "tools.py"}


def test_files_that_define_a_model_tell_what_is_set_on_its_parameters(tmp_path: Path) -> None:
    defining = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(ones(3))
        self.scale.decays = False
"""
    using = f"""\
{IMPORT}
from net import Net

model = FSDP(Net(), use_orig_params=True)
groups = [p for p in model.parameters() if getattr(p, "decays", True)]
"""
    run = session.run([lay(tmp_path, {"net.py": defining, "train.py": using})])
    assert [p.name for p in run.changed] == ["train.py"]
    assert b"vars(parameter)" in run.result.changes[tmp_path / "train.py"]
    sites = {str(d.site.construct): d.site.module.path.name for d in run.result.decisions}
    assert sites["parameter attribute"] == "net.py"


def test_files_that_run_a_model_for_others_tell_so(tmp_path: Path) -> None:
    helper = "def evaluate(model):\n    return _mean(model)\n\ndef _mean(net):\n    return net(1)\n"
    main = f"""\
{IMPORT}
from torch.optim import SGD

from helper import evaluate

model = FSDP(net)
evaluate(model)
optimizer = SGD(model.parameters())
"""
    run = session.run([lay(tmp_path, {"helper.py": helper, "train.py": main})])
    assert b"reshard_parameters(model)\noptimizer" in run.result.changes[tmp_path / "train.py"]


@pytest.mark.parametrize(
    "later",
    [
        "    return [m for m in model.modules() if type(m) is Block]\n",
        "    return [m for m in model.modules() if m.__class__.__name__ == 'Block']\n",
        "    return copy.deepcopy(model)\n",
    ],
)
def test_files_that_ask_for_the_class_of_a_model_are_read(tmp_path: Path, later: str) -> None:
    helper = f"import copy\nfrom layers import Block\n\ndef look(model):\n{later}"
    main = f"{IMPORT}from look import look\n\nlook(FSDP(net))\n"
    run = session.run([lay(tmp_path, {"look.py": helper, "train.py": main})])
    assert {d.code for d in run.result.decisions} & {"FSDP413", "FSDP414"}


def test_files_that_make_4_bit_layers_are_read(tmp_path: Path) -> None:
    helper = (
        "from bitsandbytes.nn import Linear4bit\n\n\ndef head():\n    return Linear4bit(4, 4)\n"
    )
    main = f"{IMPORT}from layers import head\n\nnet.head = head()\nmodel = FSDP(net)\n"
    run = session.run([lay(tmp_path, {"layers.py": helper, "train.py": main})])
    assert [d.site.module.path.name for d in run.result.decisions if d.code == "FSDP418"] == [
        "layers.py"
    ]


# -- the walk -------------------------------------------------------------------------------------


def test_foreign_trees_are_left_out(tmp_path: Path) -> None:
    inside = ("src", ".venv/lib", "venv", "node_modules/x", ".git/hooks", "lib/site-packages/torch")
    lay(tmp_path, {f"{directory}/a.py": USE for directory in inside})
    lay(tmp_path, {"env39/pyvenv.cfg": "home = /usr/bin\n", "env39/lib/a.py": USE})
    lay(tmp_path, {"conda/conda-meta/history": "", "conda/lib/a.py": USE})
    assert candidates(tmp_path) == {"src/a.py"}


def test_a_foreign_tree_that_is_named_is_read(tmp_path: Path) -> None:
    lay(tmp_path, {"site-packages/pkg/a.py": USE})
    assert candidates(tmp_path / "site-packages") == {"pkg/a.py"}


def test_gitignore_rules_are_gits(tmp_path: Path) -> None:
    repository(
        tmp_path,
        {
            ".gitignore": "build/\n/top.py\n*_gen.py\n!kept_gen.py\n# comment.py\nfoo\\ bar.py\n",
            ".git/info/exclude": "private.py\n",
            "a.py": USE,
            "build/a.py": USE,
            "nested/build/a.py": USE,
            "top.py": USE,
            "nested/top.py": USE,
            "x_gen.py": USE,
            "kept_gen.py": USE,
            "comment.py": USE,
            "foo bar.py": USE,
            "private.py": USE,
            "inner/.gitignore": "!x_gen.py\nsecret.py\n",
            "inner/x_gen.py": USE,
            "inner/secret.py": USE,
            "secret.py": USE,
        },
    )
    kept = {"a.py", "nested/top.py", "kept_gen.py", "comment.py", "inner/x_gen.py", "secret.py"}
    assert candidates(tmp_path) == kept


def test_ignore_files_above_a_given_directory_count(tmp_path: Path) -> None:
    repository(tmp_path, {".gitignore": "old.py\n", "pkg/old.py": USE, "pkg/a.py": USE})
    assert candidates(tmp_path / "pkg") == {"a.py"}


def test_what_is_named_is_read_even_when_git_ignores_it(tmp_path: Path) -> None:
    repository(tmp_path, {".gitignore": "scratch/\nx.py\n", "scratch/a.py": USE, "x.py": USE})
    assert candidates(tmp_path / "x.py") == {"x.py"}
    assert candidates(tmp_path / "scratch") == {"a.py"}


def test_exclude_is_relative_to_the_project(tmp_path: Path) -> None:
    lay(tmp_path, {"pkg/old/a.py": USE, "pkg/a.py": USE, "old/a.py": USE})
    found = candidates(tmp_path / "pkg", exclude=("/pkg/old/",), base=tmp_path)
    assert found == {"a.py"}
    assert candidates(tmp_path, exclude=("old",), base=tmp_path) == {"pkg/a.py"}


def test_a_link_in_a_tree_is_the_file_it_names_once(tmp_path: Path) -> None:
    lay(tmp_path, {"proj/real/a.py": USE, "outside/b.py": USE, "outside/dir/c.py": USE})
    project = tmp_path / "proj"
    (project / "link.py").symlink_to("real/a.py")
    (project / "away.py").symlink_to("../outside/b.py")
    (project / "linked_dir").symlink_to("../outside/dir")
    (project / "loop").symlink_to(".")
    (project / "dangling.py").symlink_to("nothing.py")
    (project / "itself.py").symlink_to("itself.py")
    found = search.find([project])
    assert set(found.candidates) == {project / "real/a.py"}
    assert not found.unread
    assert found.seen == 1


def test_a_path_through_a_link_is_shown_as_it_was_given(tmp_path: Path) -> None:
    lay(tmp_path, {"real/a.py": USE})
    (tmp_path / "link").symlink_to("real")
    assert set(search.find([tmp_path / "link"]).candidates) == {tmp_path / "link/a.py"}


def test_the_same_file_given_twice_is_read_once(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": USE})
    found = search.find([tmp_path, tmp_path / "a.py", tmp_path / ".." / tmp_path.name / "a.py"])
    assert found.seen == 1


def test_scripts_without_a_suffix(tmp_path: Path) -> None:
    lay(tmp_path, {"train": f"#!/usr/bin/env python3\n{USE}", "run": f"#!/bin/sh\n{USE}"})
    assert candidates(tmp_path / "train") == {"train"}
    found = search.find([tmp_path / "run"])
    assert [(p.name, reason) for p, reason in found.unread] == [("run", "is not a Python file")]


@pytest.mark.parametrize("name", ["config.yaml", "notebook.json", "a.txt", "a.pyc"])
def test_other_files_are_said_to_be_no_python(tmp_path: Path, name: str) -> None:
    lay(tmp_path, {name: "torch.distributed.fsdp"})
    assert search.find([tmp_path / name]).unread


def test_stubs_are_read(tmp_path: Path) -> None:
    assert candidates(lay(tmp_path, {"a.pyi": IMPORT})) == {"a.pyi"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    lay(tmp_path, {"a.py": USE, "closed.py": USE, "shut/b.py": USE})
    (tmp_path / "closed.py").chmod(0)
    (tmp_path / "shut").chmod(0)
    try:
        found = search.find([tmp_path])
    finally:
        (tmp_path / "shut").chmod(0o755)
    assert {p.name for p, _ in found.unread} == {"closed.py", "shut"}
    assert {p.name for p in found.candidates} == {"a.py"}


@pytest.mark.parametrize("name", ["nothing", "nothing.py", "a.py/b.py"])
def test_a_path_that_does_not_exist_is_a_problem(tmp_path: Path, name: str) -> None:
    lay(tmp_path, {"a.py": ""})
    with pytest.raises(PathProblem, match=name):
        search.find([tmp_path / name])


def test_a_dangling_link_and_a_pipe_are_problems(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("nothing.py")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(PathProblem, match="link to nothing"):
        search.find([tmp_path / "link.py"])
    with pytest.raises(PathProblem, match="neither a file nor a directory"):
        search.find([tmp_path / "pipe.py"])


def test_a_directory_without_python_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(PathProblem, match="no Python files"):
        search.find([tmp_path])


def test_the_order_of_files_is_fixed(tmp_path: Path) -> None:
    names = ["z.py", "a/b.py", "a.py", "b/a.py", "a/a.py"]
    lay(tmp_path, dict.fromkeys(names, USE))
    found = [p.relative_to(tmp_path).as_posix() for p in search.find([tmp_path]).candidates]
    assert found == ["a.py", "z.py", "a/a.py", "a/b.py", "b/a.py"]


# -- what meets through imports -------------------------------------------------------------------

CLIPS = "def step(model):\n    model.clip_grad_norm_(1.0)\n"


@pytest.mark.parametrize(
    "main",
    [
        "from pkg import build\n",
        "from pkg import other, build as make\n",
        "from pkg import (\n    other,\n    build,  # why\n)\n",
        "from pkg import \\\n    build\n",
        "from pkg import *\n",
        "import pkg\nmodel = pkg.build(net)\n",
        "import pkg as p\nmodel = p.build(net)\n",
        "import pkg.wrapping\nmodel = pkg.wrapping.build(net)\n",
        "from pkg import wrapping\n",
        "from pkg.wrapping import build\n",
        "def f():\n    from pkg.inner import build\n",
        "from starred import build\n",
    ],
)
def test_whatever_way_a_model_is_imported(tmp_path: Path, main: str) -> None:
    lay(
        tmp_path,
        {
            "pkg/__init__.py": "from .other import other\nfrom .inner import build\n",
            "pkg/inner/__init__.py": "from ..wrapping import build\n",
            "pkg/wrapping.py": USE,
            "pkg/other.py": "def other(): ...\n",
            "starred/__init__.py": "from pkg.wrapping import *\n",
            "main.py": main,
        },
    )
    found = search.find([tmp_path])
    assert tmp_path / "main.py" in found.others


def test_a_package_does_not_join_what_has_nothing_in_common(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "pkg/__init__.py": "from .wrapping import build\nfrom .tools import step\n",
            "pkg/wrapping.py": USE,
            "pkg/tools.py": "def step(model):\n    return model.state_dict()\n",
            "main.py": "from pkg import step\nimport pkg\npkg.step(model)\n",
        },
    )
    found = search.find([tmp_path])
    assert not set(found.others) & {tmp_path / "pkg/tools.py", tmp_path / "main.py"}


def test_names_that_packages_import_from_each_other_end(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "a/__init__.py": "from b import thing\nfrom b import *\n",
            "b/__init__.py": "from a import thing\nfrom a import *\n",
            "wrapping.py": f"from a import thing\n{USE}",
        },
    )
    assert candidates(tmp_path) == {"wrapping.py"}


def test_files_that_mention_fsdp_and_meet_none_are_not_read(tmp_path: Path) -> None:
    look_alike = "from fairscale.nn import FullyShardedDataParallel as FSDP\n("
    lay(tmp_path, {"a.py": USE, "b.py": look_alike, "c.py": "from a import build\nfsdp = build\n"})
    found = search.find([tmp_path])
    assert {p.name for p in found.candidates} == {"a.py", "c.py"}
    assert {Path(p).name for p in found.library} == {"b.py"}


# -- code that uses FSDP2 -------------------------------------------------------------------------

FSDP2 = "fully_shard\n\n\ndef build(model):\n    return fully_shard(model)\n"


@pytest.mark.parametrize(
    "package",
    ["torch.distributed.fsdp", "torch.distributed._composable.fsdp", "torch.distributed. fsdp"],
)
def test_a_tree_that_uses_fsdp2_alone_is_read(tmp_path: Path, package: str) -> None:
    assert candidates(lay(tmp_path, {"a.py": f"from {package} import {FSDP2}"})) == {"a.py"}


@pytest.mark.parametrize(
    "package", ["colossal.fsdp_like", "engine.parallel", "torch.distributed._composable.replicate"]
)
def test_one_that_uses_neither_is_not(tmp_path: Path, package: str) -> None:
    assert not candidates(lay(tmp_path, {"a.py": f"from {package} import {FSDP2}"}))


def test_files_that_meet_a_model_of_fsdp2_are_read_with_it(tmp_path: Path) -> None:
    lay(
        tmp_path,
        {
            "wrapping.py": f"from torch.distributed.fsdp import {FSDP2}",
            "train.py": "from wrapping import build\nimport loop, norms, save, plain\n",
            "loop.py": "def run(model):\n    model.set_requires_gradient_sync(False)\n",
            "norms.py": "def norm(grads):\n    return sum(g.to_local().norm() for g in grads)\n",
            "save.py": "import torch.distributed.checkpoint as dcp\n\ndcp.save({}, path='x')\n",
            "plain.py": "x = 1\n",
            "other/far.py": "def run(model):\n    model.set_requires_gradient_sync(False)\n",
        },
    )
    found = search.find([tmp_path])
    others = {p.relative_to(tmp_path).as_posix() for p in found.others}
    assert others == {"train.py", "loop.py", "norms.py", "save.py"}
