"""FSDP423: what is done about code that only torch releases below the target run."""

from __future__ import annotations

import json

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from tests.helpers.migrating import migrate, unmarked

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

OLD = torch.__version__ < "2.1"


def build(net):
    return FSDP(net)


"""
MIGRATED = """\
import torch
from torch.distributed.fsdp import fully_shard

OLD = torch.__version__ < "2.1"


def build(net):
    return fully_shard(net)


"""
MARKER = "# TODO(fsdp-migrate FSDP423)"


def run(files: dict[str, str] | str) -> tuple[Result, dict[str, str]]:
    """The result of a run, a second of which changes nothing."""
    named = {"example.py": HEAD + files} if isinstance(files, str) else files
    result, after = migrate(named)
    assert not result.problems
    again, twice = migrate(after)
    assert not again.problems
    assert twice == after
    left, kept = (
        [(d.site.module.path, d.code) for d in r.decisions if d.outcome is Outcome.LEFT]
        for r in (result, again)
    )
    assert left == kept
    return result, after


GONE = {
    "the last statement of a function": (
        "def f():\n    if OLD:\n        FSDP._lazy_init = print\n",
        "def f():\n    pass\n",
    ),
    "a comment above it goes, one further up stays": (
        "# first\n\n# old torch\nif OLD:\n    FSDP._lazy_init = print  # so\nprint(1)\n",
        "# first\n\nprint(1)\n",
    ),
    "comments of the branches that stay": (
        "# choose\nif OLD:\n    FSDP._lazy_init = print\n# not so\nelif torch.cuda:  # cuda\n"
        "    print(1)\n# the rest\nelse:\n    print(2)\n",
        "# choose\n# not so\nif torch.cuda:  # cuda\n    print(1)\n# the rest\nelse:\n"
        "    print(2)\n",
    ),
    "what is dedented": (
        "# choose\nif OLD:\n    FSDP._lazy_init = print\n# the rest\nelse:  # new\n"
        "    # here\n    text = '''\n    a\n    '''\n    print(\n        text,\n    )\n\n"
        "    print(2)\n",
        "# choose\n# the rest\n# new\n# here\ntext = '''\n    a\n    '''\nprint(\n    text,\n)\n\n"
        "print(2)\n",
    ),
    "comments at its end": (
        "def f():\n    if OLD:\n        FSDP._lazy_init = print\n    else:\n        print(1)\n"
        "        # inner\n    # outer\n\n\nprint(2)\n",
        "def f():\n    print(1)\n    # inner\n    # outer\n\n\nprint(2)\n",
    ),
    "a part in the middle": (
        "if torch.cuda:\n    print(1)\nelif OLD:\n    FSDP._lazy_init = print\nelse:\n"
        "    print(2)\n",
        "if torch.cuda:\n    print(1)\nelse:\n    print(2)\n",
    ),
    "all parts of a chain": (
        "print(0)\nif OLD:\n    FSDP._lazy_init = print\nelif torch.__version__ < '2.2':\n"
        "    FSDP._lazy_init = str\nprint(1)\n",
        "print(0)\nprint(1)\n",
    ),
    "a chain behind what always holds": (
        "if not OLD:\n    print(1)\nelif torch.cuda:\n    FSDP._lazy_init = print\nelse:\n"
        "    print(2)\nprint(3)\n",
        "if not OLD:\n    print(1)\nprint(3)\n",
    ),
    "imports in it": (
        "def f():\n    print(1)\n    if OLD:\n"
        "        from torch.distributed.fsdp import _runtime_utils\n\n"
        "        _runtime_utils._lazy_init = print\n",
        "def f():\n    print(1)\n",
    ),
    "a test that asks for the model first": (
        "def f(net):\n    model = build(net)\n    if isinstance(model, FSDP) and OLD:\n"
        "        model._lazy_init()\n    return model\n",
        "def f(net):\n    model = build(net)\n    return model\n",
    ),
    "a test that asks for the model then": (
        "def f(net):\n    model = build(net)\n    if OLD and isinstance(model, FSDP):\n"
        "        print(1)\n    return model\n",
        "def f(net):\n    model = build(net)\n    return model\n",
    ),
    "one of the ways to yield": (
        "def f():\n    if OLD:\n        yield FSDP\n    yield 1\n",
        "def f():\n    yield 1\n",
    ),
    "names that stay bound": (
        "if OLD:\n    wrapper = FSDP\nelse:\n    wrapper = print\nprint(wrapper)\n",
        "wrapper = print\nprint(wrapper)\n",
    ),
}


@pytest.mark.parametrize(("text", "expected"), GONE.values(), ids=GONE)
def test_what_goes(text: str, expected: str) -> None:
    result, after = run(text)
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)
    assert after["example.py"] == MIGRATED + expected


LEFT = {
    "one line": "if OLD: FSDP._lazy_init = print\n",
    "an else on one line": "if not OLD:\n    print(1)\nelse: FSDP._lazy_init = print\n",
    "a conditional expression": "wrap = FSDP if OLD else print\n",
    "what follows a return": (
        "def f(net):\n    if not OLD:\n        return net\n    return FSDP(net)\n"
    ),
    "a condition": "def f(net):\n    return OLD and isinstance(net, FSDP)\n",
    "a test that does something": "if print() and OLD:\n    FSDP._lazy_init = print\n",
    "a test that binds a name": "if (x := 1) and OLD:\n    FSDP._lazy_init = print\nprint(x)\n",
    "what makes the function a generator": "def f(net):\n    if OLD:\n        yield FSDP(net)\n",
    "a name that is used elsewhere": (
        "if OLD:\n    wrapper = FSDP\nelse:\n    print(1)\n\n\ndef f(net):\n"
        "    return wrapper(net)\n"
    ),
    "a name that is offered": "if OLD:\n    wrapper = FSDP\n__all__ = ['wrapper']\n",
    "a global": "def f():\n    if OLD:\n        global g\n        g = FSDP\n",
    "a function that only it uses": (
        "def mended(net):\n    return FSDP(net)\n\n\ndef f(net):\n"
        "    return mended(net) if OLD else net\n"
    ),
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_is_left_holds_nothing_back(text: str) -> None:
    result, after = run(text)
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert left
    assert all(d.code == "FSDP423" and not d.quiet and d.help for d in left)
    text_after = after["example.py"]
    assert MARKER in text_after
    assert "fully_shard(net)" in text_after
    assert unmarked(text_after).endswith(text)


def test_arguments_that_go_with_a_constructor() -> None:
    text = "def f(net):\n    return FSDP(net, forward_prefetch=FSDP._is_sync if OLD else False)\n"
    result, after = run(text)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert after["example.py"] == f"{MIGRATED}def f(net):\n    return fully_shard(net)\n"


def test_arguments_that_a_constructor_keeps() -> None:
    text = """\
from torch.distributed.fsdp import MixedPrecision


def f(net):
    half = MixedPrecision(torch.float16) if OLD else MixedPrecision(torch.bfloat16)
    return FSDP(net, mixed_precision=half)


def g(net):
    return FSDP(
        net,
        mixed_precision=MixedPrecision(torch.float16) if OLD else MixedPrecision(torch.bfloat16),
    )
"""
    result, after = run(text)
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert [(d.code, str(d.site.construct)) for d in left] == [("FSDP423", "MixedPrecision")] * 2
    assert "FSDP(" not in after["example.py"]


HOLDING = {
    "a function that is replaced": "FSDP.forward = print",
    "a method by its class": "FSDP.state_dict(build(net))",
    "a class that is handed on": "things.register(FSDP)",
    "a method of FSDP1's": "build(net)._exec_order_data.clear()",
    "a subclass": "class Own(FSDP):\n            def forward(self): ...",
}


@pytest.mark.parametrize("text", HOLDING.values(), ids=HOLDING)
def test_what_would_hold_models_back_elsewhere(text: str) -> None:
    test = f"def f(net, things):\n    print(build(net))\n    if {{}}:\n        {text}\n"
    held, _ = migrate({"example.py": HEAD + test.format("things")})
    assert any(d.outcome is Outcome.LEFT for d in held.decisions)
    result, after = run(test.format("OLD"))
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert after["example.py"] == f"{MIGRATED}def f(net, things):\n    print(build(net))\n"


OTHER = """\
import torch
from helpers import mended, plain

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    if torch.__version__ < "2.0":
        FSDP._auto_wrap = mended
    return plain(FSDP(net))
"""
HELPERS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def deeper(net):
    return FSDP._wrapped(net)


def mended(net):
    return deeper(FSDP(net, None))


def plain(net):
    return net
"""


def test_a_second_run_knows_what_only_removed_code_used() -> None:
    result, after = run({"example.py": OTHER, "helpers.py": HELPERS})
    assert "helpers import plain" in after["example.py"]
    assert "__version__" not in after["example.py"]
    assert unmarked(after["helpers.py"]) == HELPERS
    assert after["helpers.py"].count(MARKER) == 2
    assert {d.code for d in result.decisions if d.outcome is Outcome.LEFT} == {"FSDP423"}
    # What is used again counts again.
    used = f"{after['example.py']}\n\nimport helpers\n\nhelpers.mended(build)\n"
    again, _ = migrate({**after, "example.py": used})
    assert "FSDP423" not in {d.code for d in again.decisions}


def test_where_nothing_is_migrated_older_releases_may_be_meant() -> None:
    text = "if OLD:\n    FSDP._lazy_init = print\n\nFSDP.forward = print\n"
    result, after = run(text)
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert unmarked(after["example.py"]) == HEAD + text


def test_code_for_newer_releases_may_be_all_there_is() -> None:
    _, after = run(
        {
            "example.py": "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
            "def build(net):\n    if torch.__version__ < '2.4':\n        return FSDP(net)\n"
            "    return fully_shard(net)\n"
        }
    )
    assert after["example.py"] == (
        "from torch.distributed.fsdp import fully_shard\n\n\n"
        "def build(net):\n    return fully_shard(net)\n"
    )


@pytest.mark.parametrize("code", ["FSDP423", "FSDP499"])
def test_what_is_ignored_stays_with_its_branch(code: str) -> None:
    text = (
        "if OLD:\n    FSDP._lazy_init = print\n"
        f"    FSDP._lazy_init = str  # fsdp-migrate: leave[{code}] so\n"
    )
    result, after = run(text)
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert [d.message for d in left] == ["only torch before 2.1 runs this", "stays on purpose: so"]
    assert (
        unmarked(after["example.py"])
        == MIGRATED.replace(
            "fully_shard\n\nOLD", "FullyShardedDataParallel as FSDP, fully_shard\n\nOLD"
        )
        + text
    )


def test_imports_do_not_go_where_code_goes() -> None:
    text = """\
import torch

if torch.__version__ < "2.1":
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    _runtime_utils._lazy_init = print
else:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)
"""
    _, after = run({"example.py": text})
    assert after["example.py"] == (
        "from torch.distributed.fsdp import fully_shard\n\n\ndef build(net):\n    return "
        "fully_shard(net)\n"
    )


def test_imports_that_nothing_uses_go_without_their_branch() -> None:
    text = """\
if OLD:
    from torch.distributed.fsdp import CPUOffload

    wanted = 1

print(wanted)
"""
    _, after = run(text)
    assert after["example.py"] == MIGRATED + "if OLD:\n    wanted = 1\n\nprint(wanted)\n"
    # That is no migration.
    _, after = run(f"{text}FSDP.forward = print\nif OLD:\n    FSDP._lazy_init = print\n")
    assert unmarked(after["example.py"]).endswith("if OLD:\n    FSDP._lazy_init = print\n")


def test_in_a_notebook() -> None:
    cells = [HEAD, "if OLD:\n    FSDP._lazy_init = print\n", "build(net)\n"]
    made = {
        "cells": [
            {
                "cell_type": "code",
                "metadata": {},
                "outputs": [],
                "execution_count": None,
                "source": c.splitlines(keepends=True),
            }
            for c in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    result, after = migrate({"train.ipynb": json.dumps(made)})
    assert not result.problems
    sources = ["".join(c["source"]) for c in json.loads(after["train.ipynb"])["cells"]]
    assert "fully_shard" in sources[0]
    assert "FSDP" not in sources[1]


def test_of_what_is_not_selected() -> None:
    text = "if OLD:\n    FSDP._lazy_init = print\n"
    _, after = migrate({"example.py": HEAD + text}, Options(ignore=frozenset({"FSDP423"})))
    assert unmarked(after["example.py"]).endswith(text)


OWN = "def _mend(model):\n    model._lazy_init = FSDP._lazy_init\n\n\n"
USED = "def f(model):\n    if OLD:\n        FSDP._lazy_init = _mend(model)\n"


def test_a_function_of_the_files_own_goes_with_the_branch_that_uses_it() -> None:
    _, after = run(OWN + USED)
    assert after["example.py"] == f"{MIGRATED}def f(model):\n    pass\n"


@pytest.mark.parametrize(
    "files",
    [
        {"example.py": HEAD + OWN + USED, "other.py": "from example import _mend\n_mend(1)\n"},
        {"example.py": HEAD + OWN + USED, "other.py": "name = '_mend'\n"},
        {"example.py": HEAD + OWN + USED + "print(_mend)\n"},
        {"example.py": HEAD + OWN + USED + "print(globals()['_mend'])\n"},
        {"example.py": HEAD + "__all__ = ['_mend']\n\n\n" + OWN + USED},
        {"example.py": HEAD + OWN.replace("_mend", "mend") + USED.replace("_mend", "mend")},
        {"example.py": HEAD + OWN + "def f(model):\n    if OLD:\n        _mend(model)\n"},
        {"example.py": HEAD + OWN + "def f(model):\n    return _mend(model) if OLD else model\n"},
    ],
    ids=["imported", "named", "used", "asked", "promised", "public", "kept", "expression"],
)
def test_a_function_that_something_else_mentions_stays(files: dict[str, str]) -> None:
    _, after = run(files)
    assert "def _mend" in after["example.py"] or "def mend" in after["example.py"]
