"""FSDP1 in strings: what counts as a reference to it, and what does not."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.rule import Outcome
from tests import accounting
from tests.migrating import migrate, outcomes

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
    "__import__": '__import__("torch.distributed.fsdp", fromlist=["CPUOffload"])',
    "sys.modules": 'import sys\nm = sys.modules["torch.distributed.fsdp"]',
    "mock.patch": 'from unittest.mock import patch\npatch("torch.distributed.fsdp.CPUOffload")',
    "monkeypatch": 'patch.setattr("torch.distributed.fsdp.FullyShardedDataParallel.no_sync", f)',
    "configuration": 'x = {"_target_": "torch.distributed.fsdp.wrap.size_based_auto_wrap_policy"}',
    "script": 's = """import torch\nfrom torch.distributed.fsdp import CPUOffload\n"""\nexec(s)',
    "written script": "p.write_text('from torch.distributed.fsdp import CPUOffload\\nx = 1')",
    "f-string": 'k = f"{p}_fsdp_wrapped_module.{n}"',
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
