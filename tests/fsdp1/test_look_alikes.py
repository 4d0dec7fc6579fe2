"""Names that torch's FSDP shares with other classes: which uses are its own, which are not, and
which may be either."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers import standins
from tests.helpers.migrating import migrate, unmarked

CODE = "FSDP105"
TORCH = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
FAIRSCALE = "from fairscale.nn import FullyShardedDataParallel as FSDP\n"
XLA = "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
WRAP = "\n\ndef wrap(model):\n    return FSDP(model)\n"


def indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


def either(first: str, second: str) -> str:
    """Both on branches of a test of the environment."""
    test = 'import os\n\nif os.environ.get("XLA"):\n'
    return f"{test}{indented(first)}else:\n{indented(second)}"


def attempt(first: str, second: str) -> str:
    return f"try:\n{indented(first)}except ImportError:\n{indented(second)}"


OWN = """\
class FSDP:
    def __init__(self, module):
        self.module = module

    def forward(self, x):
        return self.module(x)
"""
# What uses FSDP where something else may reach it as well.
MAY_BE = {
    "a test of the environment": either(XLA, TORCH) + WRAP,
    "an import that may fail": attempt(TORCH, FAIRSCALE) + WRAP,
    "an import that may fail, the other way": attempt(FAIRSCALE, TORCH) + WRAP,
    "a class of the project's own": attempt(TORCH, OWN) + WRAP,
    "a function of the project's own": attempt(TORCH, "def FSDP(module):\n    return module\n")
    + WRAP,
    "an attribute": f"import fairscale.nn\n{TORCH}\nif flag():\n"
    "    FSDP = fairscale.nn.FullyShardedDataParallel\n" + WRAP,
    "an attribute got by name": f"import fairscale.nn\n{TORCH}\nif flag():\n"
    '    FSDP = getattr(fairscale.nn, "FullyShardedDataParallel")\n' + WRAP,
    "branches of a function": "def wrap(model, xla):\n    if xla:\n"
    f"        {XLA}    else:\n        {TORCH}    return FSDP(model)\n",
    "cases": "def wrap(model, kind):\n    match kind:\n        case 'xla':\n"
    f"            {XLA}        case _:\n            {TORCH}    return FSDP(model)\n",
    "a loop": f"def wrap(models):\n    {TORCH}    for model in models:\n"
    f"        FSDP(model)\n        {XLA}",
    "a parameter": "def wrap(model, FSDP=None):\n    if FSDP is None:\n"
    f"        {TORCH}    return FSDP(model)\n",
    "a function that runs between the two": f"{TORCH}{WRAP}\n\nwrap(make())\n"
    f"{FAIRSCALE}wrap(make())\n",
    "functions that set a global": "FSDP = None\n\n\ndef on_gpus():\n    global FSDP\n"
    f"    {TORCH}\n\ndef on_tpus():\n    global FSDP\n    {XLA}{WRAP}",
    "a closure": f"def outer(xla):\n    if xla:\n        {XLA}    else:\n        {TORCH}\n"
    "    def wrap(model):\n        return FSDP(model)\n\n    return wrap\n",
    "a lambda": either(XLA, TORCH) + "\nwrap = lambda model: FSDP(model)\n",
    "a class body": "class Wrapping:\n    if flag():\n"
    f"        {XLA}    else:\n        {TORCH}    model = FSDP(make())\n",
    "modules": either(
        "import torch_xla.distributed.fsdp as fsdp\n", "import torch.distributed.fsdp as fsdp\n"
    )
    + "\n\ndef wrap(model):\n    return fsdp.FullyShardedDataParallel(model)\n",
    "stars": attempt("from torch.distributed.fsdp import *\n", "from fairscale.nn import *\n")
    + "\n\ndef wrap(model):\n    return FullyShardedDataParallel(model)\n",
    "a test": either(XLA, TORCH)
    + "\n\ndef is_sharded(model):\n    return isinstance(model, FSDP)\n",
    "a type": either(XLA, TORCH) + "\n\ndef save(model: FSDP): ...\n",
    "a quoted type": either(XLA, TORCH) + '\n\ndef save(model: "FSDP"): ...\n',
    "a subclass": either(XLA, TORCH) + "\n\nclass Sharded(FSDP):\n    pass\n",
    "a partial": "import functools\n"
    + either(XLA, TORCH)
    + "\nwrap = functools.partial(FSDP, use_orig_params=True)\n",
    "what is done to a model": either(XLA, TORCH)
    + "\n\ndef save(model):\n    model = FSDP(model)\n    model.clip_grad_norm_(1.0)\n"
    "    return model.state_dict()\n",
}


@pytest.mark.parametrize("source", MAY_BE.values(), ids=MAY_BE)
def test_what_may_be_another_class_is_left_with_the_reason(source: str) -> None:
    result, after = migrate({"example.py": source})
    assert not result.problems
    assert CODE in {d.code for d in result.decisions}
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert unmarked(after["example.py"]) == source
    assert f"TODO(fsdp-migrate {CODE})" in after["example.py"]
    assert not migrate(after)[0].changes


# Where each branch uses its own: torch's is migrated, the other stays as it is.
BRANCHES = {
    "a function": "def wrap(model, xla):\n    if xla:\n        {other}"
    "        model = FSDP(model, compute_dtype=None)\n    else:\n        {torchs}"
    "        model = FSDP(model)\n    return model\n",
    "a function that returns": "def wrap(model, xla):\n    if xla:\n        {other}"
    "        return FSDP(model, compute_dtype=None)\n    {torchs}    return FSDP(model)\n",
    "cases": "def wrap(model, kind):\n    match kind:\n        case 'xla':\n            {other}"
    "            return FSDP(model, compute_dtype=None)\n        case _:\n            {torchs}"
    "            return FSDP(model)\n",
    "functions on branches": "if flag():\n    {other}\n    def wrap(model):\n"
    "        return FSDP(model, compute_dtype=None)\nelse:\n    {torchs}\n"
    "    def wrap(model):\n        return FSDP(model)\n",
    "lambdas on branches": "if flag():\n    {other}"
    "    wrap = lambda model: FSDP(model, compute_dtype=None)\nelse:\n    {torchs}"
    "    model = FSDP(make())\n",
    "methods on branches": "if flag():\n    {other}\n    class A:\n        def wrap(self, model):\n"
    "            return FSDP(model, compute_dtype=None)\nelse:\n    {torchs}\n"
    "    class A:\n        def wrap(self, model):\n            return FSDP(model)\n",
    "one after the other": "{torchs}first = FSDP(make())\n{other}"
    "second = FSDP(make(), compute_dtype=None)\n",
    "a function after both": "{torchs}first = FSDP(make())\n{other}\n"
    "def wrap(model):\n    return FSDP(model, compute_dtype=None)\n",
    "a deleted name": "{torchs}first = FSDP(make())\ndel FSDP\n{other}\n"
    "def wrap(model):\n    return FSDP(model, compute_dtype=None)\n",
    "two functions": "def wrap(model):\n    {torchs}    return FSDP(model)\n\n\n"
    "def wrap_on_tpus(model):\n    {other}    return FSDP(model, compute_dtype=None)\n",
}


def is_import(decision: Decision) -> bool:
    return str(decision.site.construct).startswith("import(")


@pytest.mark.parametrize("other", [FAIRSCALE, XLA], ids=["fairscale", "XLA"])
@pytest.mark.parametrize("form", BRANCHES.values(), ids=BRANCHES)
def test_every_branch_is_taken_for_itself(form: str, other: str) -> None:
    source = form.format(torchs=TORCH, other=other)
    result, after = migrate({"example.py": source})
    assert not result.problems
    (decision,) = (d for d in result.decisions if not is_import(d))  # one may stay, for a ``del``
    assert decision.outcome is Outcome.REWRITTEN
    assert "fully_shard(" in after["example.py"]
    assert other.strip() in after["example.py"]
    assert "FSDP(model, compute_dtype=None)" in after["example.py"].replace("make()", "model")
    names = "def flag(): return True\ndef make(): return object()\n"
    standins.run(names + after["example.py"], "example")


# What stands for a class that is missing is none that could be called.
PLACEHOLDERS = {
    "nothing": "FSDP = None\n",
    "a flag": "FSDP = False\n",
    "two at once": "FSDP, HAS_FSDP = None, False\n",
    "an object": "FSDP = object\n",
    "no types": "FSDP = ()\n",
    "an empty class": "class FSDP:\n    pass\n",
    "a class that raises": "class FSDP:\n    def __init__(self, *args):\n"
    '        raise ImportError("no FSDP")\n',
    "a function that raises": 'def FSDP(*args):\n    raise ImportError("no FSDP")\n',
    "an error": 'raise ImportError("torch is too old")\n',
    "another flag": "HAS_FSDP = False\n",
    "where torch had it": "from torch.distributed._fsdp import FullyShardedDataParallel as FSDP\n",
    "where torch has it, too": "from torch.distributed.fsdp.fully_sharded_data_parallel import (\n"
    "    FullyShardedDataParallel as FSDP,\n)\n",
}


@pytest.mark.parametrize("fallback", PLACEHOLDERS.values(), ids=PLACEHOLDERS)
def test_what_stands_for_a_missing_class_is_no_look_alike(fallback: str) -> None:
    result, after = migrate({"example.py": attempt(TORCH, fallback) + WRAP})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "return fully_shard(model)" in after["example.py"]
    compile(after["example.py"], "example.py", "exec")


TESTS = {
    "is None": "    if FSDP is None:\n        raise ImportError\n",
    "is not None": "    assert None is not FSDP, model\n",
    "a condition": "    model = model if FSDP else None\n",
    "a negated one": "    if not FSDP:\n        raise ImportError\n",
    "one of two": "    if model and FSDP:\n        print(model)\n",
    "a truth value": "    print(bool(FSDP))\n",
}


@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_what_asks_for_a_missing_class_is_left_and_holds_nothing_back(test: str) -> None:
    source = (
        attempt(TORCH, "FSDP = None\n") + f"\n\ndef wrap(model):\n{test}    return FSDP(model)\n"
    )
    result, after = migrate({"example.py": source})
    by_code = {d.code: d for d in result.decisions}
    assert {c: d.outcome for c, d in by_code.items()} == {
        "FSDP101": Outcome.REWRITTEN,
        "FSDP404": Outcome.LEFT,
    }
    assert "could be imported" in by_code["FSDP404"].message
    assert test in unmarked(after["example.py"])
    assert "FullyShardedDataParallel as FSDP" in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize("use", ["model.kind is FSDP", "model and FSDP", "FSDP or model"])
def test_what_hands_the_class_on_or_compares_it_is_no_such_test(use: str) -> None:
    source = f"{TORCH}\n\ndef wrap(model):\n    print({use})\n    return FSDP(model)\n"
    result, _ = migrate({"example.py": source})
    assert not any("could be imported" in d.message for d in result.decisions)
    assert Outcome.LEFT in {d.outcome for d in result.decisions}


# What never leads to torch's FSDP, although it is spelled alike: no site, in trees without it.
WITHOUT = {
    "its own class": "class FullyShardedDataParallel:\n"
    "    def __init__(self, module):\n        self._fsdp_wrapped_module = module\n"
    "        setattr(self, '_flat_param', [])\n"
    "    def clean(self, name):\n        return name.replace('_fsdp_wrapped_module.', '')\n",
    "names of loggers": "import logging\n\n"
    'logging.getLogger("torch.distributed.fsdp._debug_utils").setLevel(logging.ERROR)\n',
    "settings of loggers": "import logging.config\n\nlogging.config.dictConfig(\n"
    '    {"loggers": {"torch.distributed.fsdp._debug_utils": {"level": "ERROR"}}}\n)\n',
    "warnings": "import warnings\n\n"
    'warnings.filterwarnings("ignore", module="torch.distributed.fsdp.wrap")\n',
    "settings of the documentation": 'intersphinx_mapping = {"torch.distributed.fsdp.wrap": 1}\n'
    'nitpick_ignore = [("py:class", "torch.distributed.fsdp.FullyShardedDataParallel")]\n'
    'nitpick_ignore += [("py:class", "torch.distributed.fsdp.ShardingStrategy")]\n'
    'nitpick_ignore.append(("py:class", "torch.distributed.fsdp.MixedPrecision"))\n',
    "methods of models": "def step(model):\n    model.clip_grad_norm_(1.0)\n"
    "    with model.no_sync(), model.summon_full_params():\n        model.check_is_root()\n"
    "    return model._handles, model._fsdp_wrapped_module, model.sharding_strategy\n",
    "the environment": "import os\n\nos.environ['FSDP_USE_FULL_PREC_IN_EVAL'] = '1'\n"
    "os.environ['FSDP_SHARDING_STRATEGY'] = 'FULL_SHARD'\n",
    "fairscale's": FAIRSCALE + WRAP + "PREFIX = b'_fsdp_wrapped_module', '_fpw_module'\n",
    "XLA's": XLA + WRAP + "PREFIX = '_fsdp_wrapped_module'\n",
    "settings of another library": "from accelerate.utils import FullyShardedDataParallelPlugin\n\n"
    "FSDP_STATE_DICT_TYPE = ['FULL_STATE_DICT', '_fsdp_wrapped_module']\n"
    "plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type='FULL_STATE_DICT')\n",
    "a name of a module": "NOISY = ['torch.distributed.fsdp._debug_utils']\n",
}


@pytest.mark.parametrize("source", WITHOUT.values(), ids=WITHOUT)
def test_nothing_is_a_site_without_torchs_fsdp(source: str) -> None:
    result, after = migrate({"example.py": source})
    assert not result.decisions
    assert not result.problems
    assert after["example.py"] == source


BESIDE = ["names of loggers", "settings of loggers", "warnings", "settings of the documentation"]


@pytest.mark.parametrize("name", BESIDE)
def test_what_names_no_more_than_a_module_is_none_beside_it_either(name: str) -> None:
    source = WITHOUT[name]
    result, after = migrate({"example.py": TORCH + WRAP, "conf.py": source})
    assert [d.outcome for d in result.decisions] == [Outcome.REWRITTEN]
    assert after["conf.py"] == source


BY_NAME = {
    "an import": 'import importlib\n\nfsdp = importlib.import_module("torch.distributed.fsdp")\n',
    "a patch": "from unittest import mock\n\n\n"
    '@mock.patch("torch.distributed.fsdp.FullyShardedDataParallel")\ndef test(wrapper): ...\n',
    "a target": 'CONFIG = {"_target_": "torch.distributed.fsdp.FullyShardedDataParallel"}\n',
}


@pytest.mark.parametrize("source", BY_NAME.values(), ids=BY_NAME)
def test_what_gets_torchs_fsdp_by_name_is_a_site_in_any_tree(source: str) -> None:
    strings = "PREFIX = '_fsdp_wrapped_module'\n"
    result, _ = migrate({"example.py": source, "keys.py": strings})
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert {d.site.module.display for d in result.decisions} == {"example.py", "keys.py"}


# -- through modules of the project ------------------------------------------------------------

USER = "from wrap import FSDP\n" + WRAP


def test_a_module_that_binds_two_classes_hands_on_both() -> None:
    files = {"wrap.py": either(XLA, TORCH), "example.py": USER}
    result, after = migrate(files)
    assert CODE in {d.code for d in result.decisions}
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert unmarked(after["example.py"]) == files["example.py"]
    assert unmarked(after["wrap.py"]) == files["wrap.py"]


def test_a_module_hands_on_what_a_name_is_in_the_end() -> None:
    files = {"wrap.py": TORCH + "first = FSDP(make())\n" + FAIRSCALE, "example.py": USER}
    result, after = migrate(files)
    assert [d.outcome for d in result.decisions if not is_import(d)] == [Outcome.REWRITTEN]
    assert after["example.py"] == USER
    assert "first = fully_shard(make())" in after["wrap.py"]
    assert FAIRSCALE in after["wrap.py"]


def test_a_class_of_the_project_in_the_fallback_is_handed_on_as_well() -> None:
    for importing in ("from wrap import FSDP\n", "from wrap import *\n"):
        files = {"wrap.py": attempt(TORCH, OWN), "example.py": importing + WRAP}
        result, after = migrate(files)
        assert CODE in {d.code for d in result.decisions}
        assert unmarked(after["example.py"]) == files["example.py"]


def test_an_attribute_of_a_module_of_the_project() -> None:
    user = "import wrap\n\n\ndef build(model):\n    return wrap.FSDP(model)\n"
    for imports, left in ((either(XLA, TORCH), True), (attempt(TORCH, "FSDP = None\n"), False)):
        result, after = migrate({"wrap.py": imports, "example.py": user})
        assert (CODE in {d.code for d in result.decisions}) is left
        assert ("fully_shard(model)" in after["example.py"]) is not left


def test_an_attribute_that_is_used_is_imported_still() -> None:
    user = "import wrap\n\n\ndef build(model):\n    return wrap.FSDP(*model)\n"
    _, after = migrate({"wrap.py": TORCH, "example.py": user})
    assert TORCH in after["wrap.py"]
    trainer = f"class Trainer:\n    {TORCH}\n    def wrap(self, model):\n"
    trainer += "        return self.FSDP(model)\n"
    _, after = migrate({"example.py": trainer})
    assert unmarked(after["example.py"]) == trainer


def test_a_name_that_is_given_to_itself_is_what_it_was() -> None:
    result, _ = migrate({"wrap.py": TORCH + "FSDP = FSDP\n", "example.py": USER})
    assert CODE not in {d.code for d in result.decisions}
    assert "FullyShardedDataParallel()" in {str(d.site.construct) for d in result.decisions}


# -- what belongs together ---------------------------------------------------------------------


def test_a_test_that_may_ask_for_another_class_holds_models_back() -> None:
    source = (
        f"{attempt(FAIRSCALE, TORCH)}"
        "from torch.distributed.fsdp import FullyShardedDataParallel\n\n\n"
        "def train(net):\n    model = FullyShardedDataParallel(net)\n"
        "    if isinstance(model, FSDP):\n        model.clip_grad_norm_(1.0)\n"
    )
    result, after = migrate({"example.py": source})
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert unmarked(after["example.py"]) == source


def test_settings_that_may_be_another_librarys_hold_their_model_back() -> None:
    source = (
        f"{TORCH}try:\n    from other import MixedPrecision\nexcept ImportError:\n"
        "    from torch.distributed.fsdp import MixedPrecision\n\n\n"
        "def wrap(model):\n    return FSDP(model, mixed_precision=MixedPrecision(1))\n"
    )
    result, after = migrate({"example.py": source})
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert unmarked(after["example.py"]) == source


# What makes the other model, in a file of its own, and the classes for it.
OTHER_MODELS = {
    "fairscale's": f"def other(net):\n    {FAIRSCALE}    return FSDP(net)\n",
    "XLA's, by a dotted name": "import torch_xla.distributed.fsdp as xla\n\n\n"
    "def other(net):\n    return xla.XlaFullyShardedDataParallel(net)\n",
    "what fairscale's function wraps": "from fairscale.nn import auto_wrap\n\n\n"
    "def other(net):\n    return auto_wrap(net)\n",
    "a subclass of fairscale's": f"{FAIRSCALE}\n\nclass Sharded(FSDP):\n    pass\n\n\n"
    "def other(net):\n    return Sharded(net)\n",
    "the project's own": f"{OWN}\n\ndef other(net):\n    return FSDP(net)\n",
    "a class of that name": "class MyFSDP:\n    def state_dict(self): ...\n\n"
    "    def clip_grad_norm_(self, limit): ...\n\n\ndef other(net):\n    return MyFSDP()\n",
}
OWN_METHODS = (
    "class Sharded:\n    group = None\n    process_group = None\n    rank = 0\n\n"
    "    def clip_grad_norm_(self, limit): ...\n\n    def no_sync(self): ...\n\n\n"
    "def other(net):\n    return Sharded()\n"
)
EITHER = (
    "from other import other\n\n\n"
    "def wrap(net):\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
    "    return FSDP(net)\n\n\n"
    "def train(net, kind):\n    model = other(net) if kind else wrap(net)\n"
)


ASKED = {
    "model.clip_grad_norm_(1.0)": "if isinstance(model, FSDPModule):\n"
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "    else:\n        model.clip_grad_norm_(1.0)\n",
    "norm = model.clip_grad_norm_(1.0, norm_type=2)": "norm = (\n"
    "        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=2).full_tensor()\n"
    "        if isinstance(model, FSDPModule)\n"
    "        else model.clip_grad_norm_(1.0, norm_type=2)\n    )\n",
    "save(model.state_dict())": "            get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True))\n"
    "            if isinstance(model, FSDPModule)\n            else model.state_dict()\n",
    "if hasattr(model, 'clip_grad_norm_'):\n        model.clip_grad_norm_(1.0)": "        else:\n"
    "            model.clip_grad_norm_(1.0)\n",
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_a_model_that_either_class_may_make_is_asked_in_its_own_way(other: str, asked: str) -> None:
    source = f"import torch\n{EITHER}    {asked}\n"
    result, after = migrate({"example.py": source, "other.py": other})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert ASKED[asked] in after["example.py"]
    assert after["other.py"] == other
    assert not migrate(after)[0].changes


# What no class tells, or is written in more than one place.
NOT_TOLD = {
    "compiled": "model = torch.compile(model)\n    model.clip_grad_norm_(1.0)",
    "a comment in it": "norm = model.clip_grad_norm_(\n        1.0  # at most\n    )",
    "no path": "[model][0].clip_grad_norm_(1.0)",
    "another in it": "model.clip_grad_norm_(model.clip_grad_norm_(1.0))",
}


@pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS)
@pytest.mark.parametrize("asked", NOT_TOLD.values(), ids=NOT_TOLD)
def test_what_no_one_test_tells_is_left_with_the_reason(other: str, asked: str) -> None:
    source = f"import torch\n{EITHER}    {asked}\n"
    result, after = migrate({"example.py": source, "other.py": other})
    assert CODE in {d.code for d in result.decisions if d.outcome is Outcome.LEFT}
    assert unmarked(after["example.py"]).endswith(f"    {asked}\n")
    assert after["other.py"] == other
    assert not migrate(after)[0].changes


def test_the_module_inside_is_not_told_from_the_model() -> None:
    own = "import torch\n\n\nclass Net(torch.nn.Module):\n    def clip_grad_norm_(self, c): ...\n"
    source = (
        f"from other import Net\n{TORCH}\n\ndef train(kind):\n    net = Net()\n"
        "    model = FSDP(net) if kind else net\n    model.clip_grad_norm_(1.0)\n"
    )
    result, after = migrate({"example.py": source, "other.py": own})
    assert CODE in {d.code for d in result.decisions if d.outcome is Outcome.LEFT}
    assert "isinstance(" not in after["example.py"]


@pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS)
@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("save(model.state_dict())", "else model.state_dict()"),
        ("model.load_state_dict(read())", "else:\n        model.load_state_dict(read())"),
    ],
)
def test_states_are_those_of_fsdp2s_class_and_of_any_other(
    other: str, asked: str, kept: str
) -> None:
    """Whatever the other class is, a model of it is no ``FSDPModule``, and keeps its own way."""
    result, after = migrate({"example.py": f"{EITHER}    {asked}\n", "other.py": other})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    assert "isinstance(model, FSDPModule)" in after["example.py"]
    assert kept in after["example.py"]
    assert after["other.py"] == other


def test_states_of_a_model_that_may_be_compiled_are_not_told_apart() -> None:
    asked = "model = torch.compile(model)\n    save(model.state_dict())"
    source = f"import torch\n{EITHER}    {asked}\n"
    result, after = migrate({"example.py": source, "other.py": OTHER_MODELS["fairscale's"]})
    assert "isinstance(model, FSDPModule)\n" not in after["example.py"]
    assert CODE in {d.code for d in result.decisions}


def test_what_ends_an_fsdp2_program_holds_nothing_back() -> None:
    own = OWN_METHODS.replace("no_sync", "summon_full_params")
    asked = "with model.summon_full_params():\n        print(model)"
    compiled = f"{EITHER}    model = torch.compile(model)\n    {asked}\n"
    result, after = migrate({"example.py": f"import torch\n{compiled}", "other.py": own})
    assert "return fully_shard(net)" in after["example.py"]
    (left,) = (d for d in result.decisions if d.outcome is Outcome.LEFT)
    assert left.code == CODE
    assert unmarked(after["example.py"]).endswith(f"    {asked}\n")
    assert "# TODO(fsdp-migrate FSDP105)" in after["example.py"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("with model.no_sync():\n        net(1)", "with no_sync_of_any(model):"),
        (
            "run(model.no_sync() if net.on else None)",
            "run(no_sync_of_any(model) if net.on else None)",
        ),
        ("run(model.no_sync)", "run(partial(no_sync_of_any, model))"),
    ],
)
def test_no_sync_enters_that_of_the_projects_own_class(asked: str, given: str) -> None:
    result, after = migrate({"example.py": f"{EITHER}    {asked}\n", "other.py": OWN_METHODS})
    assert {d.outcome for d in result.decisions} <= {Outcome.REWRITTEN, Outcome.REVIEW}
    assert given in after["example.py"]


def test_a_no_sync_of_another_meaning_is_left() -> None:
    asked = "with model.no_sync(kind):\n        net(1)"
    result, after = migrate({"example.py": f"{EITHER}    {asked}\n", "other.py": OWN_METHODS})
    assert CODE in {d.code for d in result.decisions if d.outcome is Outcome.LEFT}
    assert after["example.py"].endswith(f"    {asked}\n")


def test_what_is_passed_over_without_an_error_holds_its_model_back() -> None:
    asked = "try:\n        model.clip_grad_norm_(1.0)\n    except AttributeError:\n        pass"
    source = f"import torch\n{EITHER}    model = torch.compile(model)\n    {asked}\n"
    _, after = migrate({"example.py": source, "other.py": OWN_METHODS})
    assert unmarked(after["example.py"]) == source


@pytest.mark.parametrize(
    ("asked", "new"),
    [
        ("process_group", "dist.group.WORLD"),
        ("rank", "dist.get_rank()"),
        ("world_size", "dist.get_world_size()"),
    ],
)
def test_a_group_is_that_of_all_ranks_or_the_other_objects_own(asked: str, new: str) -> None:
    own = OWN_METHODS.replace("group = None", "world_size = 1", 1)
    source = f"{EITHER}    return model.{asked}\n"
    result, after = migrate({"example.py": source, "other.py": own})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert (
        f"return ({new} if isinstance(model, FSDPModule) else model.{asked})" in after["example.py"]
    )
    assert not migrate(after)[0].changes


OWN_STATES = (
    "class Other:\n    def state_dict(self):\n        return {}\n\n"
    "    def load_state_dict(self, state): ...\n\n\ndef other(net):\n    return Other()\n"
)


@pytest.mark.parametrize(
    ("asked", "new"),
    [
        ("save(model.state_dict())", "if isinstance(model, FSDPModule)\n"),
        ("if dist.get_rank() == 0:\n        save(model.state_dict())", "else model.state_dict()"),
        ("model.load_state_dict(load())", "else:\n        model.load_state_dict(load())"),
        (
            "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
            "        save(model.state_dict())",
            "else model.state_dict()",
        ),
    ],
)
def test_a_whole_state_is_got_from_either_in_its_own_way(asked: str, new: str) -> None:
    head = "import torch.distributed as dist\nfrom torch.distributed.fsdp import StateDictType\n"
    source = f"{head}{TORCH}{EITHER}    {asked}\n"
    result, after = migrate({"example.py": source, "other.py": OWN_STATES})
    assert {d.outcome for d in result.decisions} <= {Outcome.REWRITTEN, Outcome.REVIEW}
    assert "isinstance(model, FSDPModule)" in after["example.py"]
    assert new in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize(
    "asked",
    [
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "        save(model.state_dict())",
        "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "        model.load_state_dict(load())",
        "model = torch.compile(model)\n    save(model.state_dict())",
        "model.load_state_dict(load(), assign=True)",
    ],
)
def test_a_state_that_one_form_cannot_get_from_either_holds_the_model_back(asked: str) -> None:
    head = "import torch\nfrom torch.distributed.fsdp import StateDictType\n"
    source = f"{head}{TORCH}{EITHER}    {asked}\n"
    _, after = migrate({"example.py": source, "other.py": OWN_STATES})
    assert unmarked(after["example.py"]) == source


def test_a_compiled_model_has_no_class_that_tells_its_group() -> None:
    source = (
        f"import torch\n{EITHER}    model = torch.compile(model)\n    return model.process_group\n"
    )
    result, after = migrate({"example.py": source, "other.py": OWN_METHODS})
    assert "isinstance" not in after["example.py"]
    assert Outcome.LEFT in {d.outcome for d in result.decisions}


# Where a model is told apart, or what is done is right for both.
@pytest.mark.parametrize("other", OTHER_MODELS.values(), ids=OTHER_MODELS)
def test_what_is_asked_of_torchs_model_alone_is_migrated(other: str) -> None:
    source = (
        f"{TORCH}{EITHER}    if isinstance(model, FSDP):\n        model.clip_grad_norm_(1.0)\n"
        "    model(net).backward()\n    return model.parameters()\n"
    )
    result, after = migrate({"example.py": source, "other.py": other})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "nn_utils.clip_grad_norm_(model.parameters(), 1.0)" in after["example.py"]


PLAIN = {
    "a plain module": "def other(net):\n    return net\n",
    "DDP's": "from torch.nn.parallel import DistributedDataParallel\n\n\n"
    "def other(net):\n    return DistributedDataParallel(net)\n",
    "a class without the methods": "import torch\n\n\nclass Net(torch.nn.Module):\n"
    "    def forward(self, x): ...\n\n\ndef other(net):\n    return Net()\n",
}


@pytest.mark.parametrize("other", PLAIN.values(), ids=PLAIN)
def test_a_model_that_may_be_a_plain_one_is_migrated(other: str) -> None:
    source = f"{EITHER}    model.clip_grad_norm_(1.0)\n    return model.state_dict()\n"
    result, _ = migrate({"example.py": source, "other.py": other})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


def test_an_import_of_another_class_stays_when_nothing_uses_its_name_any_more() -> None:
    source = f"def wrap(model, xla):\n    {XLA}    {TORCH}    return FSDP(model)\n"
    _, after = migrate({"example.py": source})
    assert XLA in after["example.py"]
    assert "return fully_shard(model)" in after["example.py"]


def test_a_name_that_is_deleted_is_imported_still() -> None:
    _, after = migrate({"example.py": f"{TORCH}model = FSDP(make())\ndel FSDP\n"})
    standins.run("def make(): ...\n" + after["example.py"], "example")


def test_code_for_older_releases_is_no_reason() -> None:
    source = (
        "import torch\nfrom packaging.version import Version\n\n"
        f'if Version(torch.__version__) < Version("1.12"):\n    {FAIRSCALE}else:\n    {TORCH}{WRAP}'
    )
    _, after = migrate({"example.py": source})
    assert "return fully_shard(model)" in after["example.py"]


def test_partial_stops_nothing_that_may_be_another_class() -> None:
    source = attempt(TORCH, FAIRSCALE) + WRAP
    _, after = migrate({"example.py": source}, Options(partial=True))
    assert unmarked(after["example.py"]) == source


def test_the_report_says_where_the_other_class_is_from(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(attempt(TORCH, FAIRSCALE) + WRAP)
    (decision,) = session.run([tmp_path]).result.decisions
    assert decision.message == (
        "FSDP may also be fairscale.nn.FullyShardedDataParallel here (line 4)"
    )


OWN_CLASSES = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{classes}


def make(kind, net):
    if kind == "sharded":
        return FSDP(net)
    return {{{made}}}[kind]()


def step(kind, net, x):
    model = make(kind, net)
    return model.forward(x)
"""


def own_classes(names: str, base: str) -> str:
    body = "    def forward(self, x):\n        return x\n"
    classes = "\n\n".join(f"class {name}{base}:\n{body}" for name in names)
    made = ", ".join(f'"{name}": {name}' for name in names)
    return OWN_CLASSES.format(classes=classes, made=made)


def test_a_module_of_the_projects_is_called_as_fsdps_is() -> None:
    result, after = migrate({"example.py": own_classes("AB", "(nn.Module)")})
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)
    assert "return model(x)" in after["example.py"]


def test_what_is_no_module_may_not_be_callable() -> None:
    result, after = migrate({"example.py": own_classes("AB", "")})
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)
    called = "return (model if isinstance(model, FSDPModule) else model.forward)(x)"
    assert called in after["example.py"]
    assert not migrate(after)[0].changes


def test_few_classes_are_named() -> None:
    compiled = own_classes("ABCDE", "").replace(
        "    return model.f", "    fast(model)\n    return model.f"
    )
    source = f"from torch import compile as fast\n{compiled}"
    result, after = migrate({"example.py": source})
    assert "return model.forward(x)" in after["example.py"]
    (reason,) = (d.message for d in result.decisions if d.code == CODE)
    assert reason.endswith(
        "the project's own A or the project's own B or the project's own C or 2 more, "
        "where forward is another"
    )


@pytest.mark.parametrize(
    ("call", "is_site"),
    [
        ("state_dict(only_rank_0=True)", False),
        ("load_state_dict(state, only_rank_0=True)", False),
        ("load_state_dict(state, strict=False)", True),
        ("state_dict(prefix='net.')", True),
        ("state_dict()", True),
    ],
)
def test_what_fsdp1_would_refuse_is_asked_of_another_class(call: str, is_site: bool) -> None:
    source = TORCH + f"\n\ndef use(net, state):\n    model = FSDP(net)\n    return model.{call}\n"
    result, after = migrate({"example.py": source})
    asked = [d for d in result.decisions if d.site.construct.attribute]
    assert bool(asked) is is_site
    assert is_site or f"return model.{call}" in after["example.py"]


HOLDER = """\
class Holder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.part = FSDP(net)

    def state_dict(self, only_first=True):
        return {"part": self.part.state_dict()}


def save(net):
    holder = Holder(net)
    return holder.state_dict(KEYWORD)
"""


@pytest.mark.parametrize(("keyword", "is_site"), [("only_first=False", False), ("", True)])
def test_what_no_module_takes_is_asked_of_the_class_around_sharded_parts(
    keyword: str, is_site: bool
) -> None:
    source = f"from torch import nn\n{TORCH}\n\n{HOLDER.replace('KEYWORD', keyword)}"
    result, after = migrate({"example.py": source})
    asked = [d for d in result.decisions if d.site.construct.attribute == "state_dict"]
    assert len(asked) == 1 + is_site
    assert is_site or "get_model_state_dict(self.part" in "".join(after["example.py"].split())
    assert is_site or f"return holder.state_dict({keyword})" in after["example.py"]


OWN_PARAMS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.params, self.layer = params, nn.Linear(params.dim, params.dim)


def show(model):
    ASK


def run(params):
    show(FSDP(Net(params)))
    show(Net(params))
"""


@pytest.mark.parametrize("asked", ["print(model.params.to_dict())", "print(model.params.dim)"])
def test_params_that_are_no_list_are_the_projects(asked: str) -> None:
    result, after = migrate({"example.py": OWN_PARAMS.replace("ASK", asked)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "show(fully_shard(Net(params)))" in after["example.py"]
    assert f"    {asked}\n" in after["example.py"]


@pytest.mark.parametrize(
    "asked",
    [
        "print(model.params[0])",
        "print(model.params.index(None))",
        "for p in model.params: print(p)",
    ],
)
def test_params_that_may_be_flat_parameters_stay_in_doubt(asked: str) -> None:
    source = OWN_PARAMS.replace("ASK", asked)
    result, after = migrate({"example.py": source})
    assert CODE in {d.code for d in result.decisions}
    assert unmarked(after["example.py"]) == source


STARS = "from torch.distributed.fsdp import *\nfrom torch.distributed.fsdp.wrap import *\n"


@pytest.mark.parametrize("module", ["api", "fully_sharded_data_parallel", "wrap"])
def test_a_star_takes_what_the_module_lists(module: str) -> None:
    source = f"from torch.distributed.fsdp.{module} import *\nfrom helpers import *\n\n\n"
    source += "def show(x):\n    return text_of(x), Conv1D, _or_policy\n"
    helpers = "def text_of(x):\n    return str(x)\n"
    result, after = migrate({"example.py": source, "helpers.py": helpers})
    assert not [d for d in result.decisions if not is_import(d)]
    assert after["example.py"].endswith(source.partition("\n\n\n")[2])


def test_a_star_takes_the_policies() -> None:
    source = f"{STARS}from functools import partial\n\n\ndef wrap_it(model, blocks):\n"
    source += "    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=blocks)\n"
    source += "    return FullyShardedDataParallel(model, auto_wrap_policy=policy)\n"
    result, after = migrate({"example.py": source})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert "fully_shard(model)" in after["example.py"]


def test_a_star_of_a_private_module_may_take_anything() -> None:
    source = "from torch.distributed.fsdp._common_utils import *\n\nprint(clean_tensor_name('a'))\n"
    result, _ = migrate({"example.py": source})
    assert [d.outcome for d in result.decisions if not is_import(d)]
