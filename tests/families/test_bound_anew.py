"""Imports of FSDP1 whose name the file gives something else."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

IMPORT = "from torch.distributed.fsdp import ShardingStrategy\n"
PRIVATE = "from torch.distributed.fsdp._common_utils import _get_module_fsdp_state\n"
OWN = """

def _get_module_fsdp_state(module):
    return module.state
"""
USE = """

def ask(module):
    return _get_module_fsdp_state(module)
"""
ASKING = "def ask(module):\n    from states import _get_module_fsdp_state\n\n    return module\n"
GONE = {
    "a function": PRIVATE + OWN + USE,
    "behind other imports": PRIVATE + "import math\nfrom lib import tools\n" + OWN + USE,
    "a class": IMPORT
    + '\n\nclass ShardingStrategy:\n    FULL = "full"\n\n\nprint(ShardingStrategy.FULL)\n',
    "an assignment": IMPORT + "\nShardingStrategy = str\nprint(ShardingStrategy)\n",
    "another import": IMPORT + "from lib import ShardingStrategy\n\nprint(ShardingStrategy)\n",
    "behind a function that asks for it later": PRIVATE + USE + OWN,
    "beside another name": PRIVATE.replace("import _get", "import other, _get") + OWN + USE,
}


@pytest.mark.parametrize("kind", GONE)
def test_an_import_goes_whose_name_is_bound_anew(kind: str) -> None:
    result, after = migrate({"states.py": GONE[kind], "asking.py": ASKING})
    found = [d for d in result.decisions if d.message == "removed, the name is bound anew below"]
    assert len(found) == 1
    assert found[0].outcome is Outcome.REWRITTEN
    kept = GONE[kind].split("\n", 1)[1]
    assert kept.strip() in after["states.py"]
    assert "import _get_module_fsdp_state" not in after["states.py"]
    assert "fsdp import ShardingStrategy" not in after["states.py"]


EARLY = "from states import _get_module_fsdp_state\n\nprint(_get_module_fsdp_state)\n"
STAYS = {
    "used before": PRIVATE + "\nfound = _get_module_fsdp_state\n" + OWN + USE,
    "called before": PRIVATE + USE + "\n\nask(net)\n" + OWN,
    "called by what binds it": PRIVATE + USE + "\n\n_get_module_fsdp_state = ask(net)\n",
    "called by a decorator": PRIVATE + USE + "\n\n@wraps(ask)\ndef first():\n    ...\n" + OWN,
    "called by a default": PRIVATE + USE + OWN.replace("(module)", "(module, state=ask(net))", 1),
    "an annotation uses it": PRIVATE
    + USE.replace("ask(module)", "ask(module) -> _get_module_fsdp_state")
    + OWN,
    "a decorator uses it": PRIVATE + OWN.replace("def ", "@wraps(_get_module_fsdp_state)\ndef "),
    "a default uses it": PRIVATE + OWN.replace("(module)", "(module, f=_get_module_fsdp_state)", 1),
    "its own value": IMPORT + "\nShardingStrategy = wrapped(ShardingStrategy)\n",
    "under a condition": PRIVATE + "\nif debug:\n    _get_module_fsdp_state = print\n" + USE,
    "in a try": "try:\n    "
    + PRIVATE
    + "except ImportError:\n    _get_module_fsdp_state = None\n"
    + USE,
    "wanted": PRIVATE.replace("\n", "  # noqa: F401\n") + OWN + USE,
    "named in a string": PRIVATE + '\nfound = globals()["_get_module_fsdp_state"]\n' + OWN,
}


@pytest.mark.parametrize("kind", STAYS)
def test_an_import_that_may_be_used_stays(kind: str) -> None:
    result, _ = migrate({"states.py": STAYS[kind], "asking.py": ASKING})
    assert not [d for d in result.decisions if "anew" in d.message]


def test_who_is_loaded_in_between_may_take_the_first() -> None:
    between = PRIVATE + "import asking\n" + OWN
    for asking, stays in ((EARLY, True), (ASKING, False)):
        result, _ = migrate({"states.py": between, "asking.py": asking})
        assert any("anew" in d.message for d in result.decisions) != stays
