"""FSDP1 in strings: what counts as a reference to it, and what does not."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers import accounting
from tests.helpers.migrating import migrate, outcomes

WRAP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(net)
"""
NAMED = {
    "getattr": "import torch.distributed.fsdp\n"
    'cls = getattr(torch.distributed.fsdp, "FullyShardedDataParallel")',
    "hasattr": "import torch.distributed.fsdp\n"
    'known = hasattr(torch.distributed.fsdp, "ShardingStrategy")',
    "import_module": 'import importlib\nm = importlib.import_module("torch.distributed.fsdp")',
    "import_module of a part": "from importlib import import_module\n"
    'm = import_module("torch.distributed.fsdp.wrap")',
    "import_module by a constant": "import importlib\n"
    'NAME = "torch.distributed.fsdp.fully_sharded_data_parallel"\n'
    "m = importlib.import_module(NAME)",
    "import_module by two literals": "import importlib\n"
    'm = importlib.import_module("torch.distributed" ".fsdp")',
    "__import__": '__import__("torch.distributed.fsdp", fromlist=["CPUOffload"])',
    "sys.modules": 'import sys\nm = sys.modules["torch.distributed.fsdp"]',
    "mock.patch": 'from unittest.mock import patch\npatch("torch.distributed.fsdp.CPUOffload")',
    "monkeypatch": 'patch.setattr("torch.distributed.fsdp.FullyShardedDataParallel.no_sync", f)',
    "configuration": 'x = {"_target_": "torch.distributed.fsdp.wrap.size_based_auto_wrap_policy"}',
    "script": 's = """import torch\nfrom torch.distributed.fsdp import CPUOffload\n"""\nexec(s)',
    "written script": "p.write_text('from torch.distributed.fsdp import CPUOffload\\nx = 1')",
    "f-string": 'k = f"{p}_fsdp_wrapped_module.{n}"',
    "f-string of code": 'exec(f"if x in {n}: _flat_param = 1")',
    "f-string of a pattern": 'k = rf"{p}\\._flat_param \\d"',
    "bytes": 'k = b"_fsdp_wrapped_module."',
    "pattern": 'import re\nk = re.compile(r"(?:_fsdp_wrapped_module|x)\\\\.")',
    "key": 'if "_flat_param" in name:\n    pass',
    "case": 'match name:\n    case "_fpw_module":\n        pass',
    "annotation": 'def f(m: "FSDP") -> None: ...',
    "return": 'def f(m) -> "list[FSDP]": ...',
    "part of an annotation": 'from typing import Optional\nm: Optional["FSDP"] = None',
    "cast": 'from typing import cast\nm = cast("FSDP", x)',
    "__all__": '__all__ = ["FSDP"]',
}
OTHER = {
    "docstring": 'def f():\n    """_fsdp_wrapped_module, torch.distributed.fsdp.CPUOffload"""',
    "doctest": 'def f():\n    """\n    >>> from torch.distributed.fsdp import CPUOffload\n    """',
    "message": 'raise ValueError("see torch.distributed.fsdp.FullyShardedDataParallel")',
    "log": 'import logging\nlogging.getLogger("torch.distributed.fsdp")',
    "filter": 'import warnings\nwarnings.filterwarnings("ignore", module="torch.distributed.fsdp")',
    "spec": 'import importlib.util\nimportlib.util.find_spec("torch.distributed.fsdp")',
    "FSDP2": 'x = "torch.distributed.fsdp.fully_shard"',
    "FSDP2 imported": "import importlib\n"
    'f = importlib.import_module("torch.distributed.fsdp").fully_shard',
    "log of values": 'print(f"model._flat_param ({d}): {n}\\n")',
    "log of a value": 'print(f"_flat_param: {n}")',
    "note": 's = """\nfrom torch.distributed.fsdp import CPUOffload\n"""',
    "FSDP2 in a script": 's = """\nfrom torch.distributed.fsdp import fully_shard\n"""\nexec(s)',
    "fairscale": 'x = "fairscale.nn.FullyShardedDataParallel"',
    "word": 'strategy = "FSDP"',
    "literal": 'from typing import Literal\ndef f(kind: Literal["FSDP"]): ...',
    "annotated": 'from typing import Annotated\ndef f(kind: Annotated[str, "FSDP"]): ...',
    "another module": 'x = "torch.distributed.fsdp_utils.CPUOffload"',
    "attribute": 'x = getattr(config, "no_sync", None)',
    "attribute of FSDP2": 'x = getattr(model, "unshard", None)',
}


@pytest.mark.parametrize("source", NAMED.values(), ids=NAMED)
def test_every_name_in_a_string_has_an_outcome(source: str) -> None:
    text = f"{WRAP}\n\n{source}\n"
    assert list(accounting.spelled(ast.parse(text))), "the scan does not see it"
    result, after = migrate({"a.py": text})
    assert not result.problems
    assert accounting.unaccounted({"a.py": text}, result.decisions, after) == []
    assert len(result.decisions) > 1


@pytest.mark.parametrize("source", OTHER.values(), ids=OTHER)
def test_other_strings_have_none(source: str) -> None:
    text = f"{WRAP}\n\n{source}\n"
    assert not list(accounting.spelled(ast.parse(text)))
    result, after = migrate({"a.py": text})
    assert outcomes(result) == [("FSDP101", Outcome.REWRITTEN)]
    assert after["a.py"].endswith(f"{source}\n")


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ('getattr(model, "clip_grad_norm_", None)', True),
        ('getattr(model, "clip_grad_norm_")', False),
        ('hasattr(model, "sharding_strategy")', True),
        ('getattr(model, "summon_full_params", None)', True),
    ],
)
def test_attributes_by_name_hold_back_where_they_are_quiet(line: str, held: bool) -> None:
    result, _ = migrate({"a.py": f"{WRAP}\nx = {line}\n"})
    first, second = result.decisions
    assert second.code == "FSDP499"
    assert first.outcome is (Outcome.LEFT if held else Outcome.REWRITTEN)


def test_a_wrapper_got_by_name_holds_back() -> None:
    line = 'cls = __import__("torch.distributed.fsdp").FullyShardedDataParallel'
    result, _ = migrate({"a.py": f"{WRAP}\n{line}\n"})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}


def test_quoted_annotations_keep_their_import() -> None:
    annotated = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n\n\n"
        'def f(kind: "StateDictType", model: "FSDP"):\n    return FSDP(model)\n'
    )
    _, after = migrate({"a.py": annotated})
    assert (
        "from torch.distributed.fsdp import FSDPModule, StateDictType, fully_shard" in after["a.py"]
    )
    assert 'model: "FSDPModule"' in after["a.py"]


def test_annotations_of_another_module_are_renewed() -> None:
    _, after = migrate(
        {
            "a.py": WRAP,
            "b.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
            "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
            'def f(model: "FSDP"): ...\n',
        }
    )
    assert after["b.py"] == (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from torch.distributed.fsdp import FSDPModule\n\n\n"
        'def f(model: "FSDPModule"): ...\n'
    )


TRAIN = f"import torch\n{WRAP}"
REPLACED = {
    "patch": '@patch("pkg.train.FSDP")\ndef test(fsdp): ...',
    "mock.patch": 'with mock.patch("pkg.train.FSDP"):\n    pass',
    "another name": 'patch("pkg.train.MixedPrecision")',
    "patch.object": 'patch.object(train, "FSDP")',
    "patch.multiple": 'patch.multiple("pkg.train", FSDP=mock.DEFAULT)',
    "monkeypatch": 'monkeypatch.setattr("pkg.train.FSDP", print)',
    "monkeypatch of a module": 'monkeypatch.setattr(train, "FSDP", print)',
}
HANDED = {
    "setattr": 'setattr(train, "FSDP", print)',
    "getattr": 'wrap = getattr(train, "FSDP")',
    "vars": 'wrap = vars(train)["FSDP"]',
    "not raising": 'monkeypatch.setattr(train, "FSDP", print, raising=False)',
}
NOT_REPLACED = {
    "a name of its own": 'patch("pkg.train.model")',
    "another module's": 'patch("other.train.FSDP")',
    "an attribute": 'setattr(config, "FSDP", True)',
    "a submodule of torch": 'patch("pkg.train.torch.save")',
    "a name that is not there": 'patch.object(train, "DDP")',
}


def _with_test(line: str) -> list[tuple[str, Outcome]]:
    head = "from unittest import mock\nfrom unittest.mock import patch\nfrom pkg import train\n\n"
    files = {
        "pkg/__init__.py": "",
        "pkg/train.py": TRAIN.replace(" as FSDP", " as FSDP, MixedPrecision")
        + "precision = MixedPrecision\n",
        "test_train.py": f"{head}{line}\n",
    }
    result, after = migrate(files)
    assert not result.problems
    again, _ = migrate(after)
    assert not again.changes
    assert accounting.unaccounted(files, result.decisions, after) == []
    return [
        (str(d.site.construct), d.outcome)
        for d in result.decisions
        if d.site.module.display == "test_train.py" or str(d.site.construct).endswith("Parallel()")
    ]


@pytest.mark.parametrize("line", REPLACED.values(), ids=REPLACED)
def test_names_of_the_project_that_are_replaced_are_left(line: str) -> None:
    (_, made), (construct, outcome) = _with_test(line)
    assert construct.startswith("name(")
    assert (made, outcome) == (Outcome.REWRITTEN, Outcome.LEFT)


@pytest.mark.parametrize("line", HANDED.values(), ids=HANDED)
def test_names_of_the_project_that_are_taken_hold_back(line: str) -> None:
    assert [outcome for _, outcome in _with_test(line)] == [Outcome.LEFT, Outcome.LEFT]


@pytest.mark.parametrize("line", NOT_REPLACED.values(), ids=NOT_REPLACED)
def test_other_names_may_be_replaced(line: str) -> None:
    assert [outcome for _, outcome in _with_test(line)] == [Outcome.REWRITTEN]


CLEAN = """\
import torch


def read(path):
    return {n.replace("_fsdp_wrapped_module.", ""): v for n, v in torch.load(path).items()}
"""


@pytest.mark.parametrize(
    "rest",
    [
        "from torch.distributed.fsdp import StateDictType\n\nKIND = StateDictType\n",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "class Wrapper(FSDP):\n    def forward(self, x):\n        return x\n",
    ],
    ids=["values alone", "a subclass that stays"],
)
def test_what_takes_a_part_out_has_an_outcome_while_anything_refers_to_fsdp1(rest: str) -> None:
    files = {"a.py": CLEAN, "b.py": rest}
    result, after = migrate(files)
    assert not result.problems
    assert accounting.unaccounted(files, result.decisions, after) == []
    (own,) = [d for d in result.decisions if d.site.module.display == "a.py"]
    assert own.outcome is Outcome.LEFT
    assert after["a.py"] == CLEAN
    again, _ = migrate(after)
    assert not again.changes


def test_what_takes_a_part_out_may_stay_beside_what_else_stays() -> None:
    line = 'if any("_flat_param" in name for name in torch.load("x")):\n    raise ValueError\n'
    files = {"a.py": WRAP, "b.py": f"{CLEAN}\n\n{line}"}
    result, after = migrate(files)
    assert not result.problems
    assert accounting.unaccounted(files, result.decisions, after) == []
    assert "fully_shard(net)" in after["a.py"]
    assert CLEAN in after["b.py"]
    again, _ = migrate(after)
    assert not again.changes
    assert not again.problems
    kept = [d for d in again.decisions if d.kept]
    assert [d.outcome for d in kept] == [Outcome.LEFT]
