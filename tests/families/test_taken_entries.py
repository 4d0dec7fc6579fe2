"""Arguments are taken out of a dictionary where nothing else can feel what they become."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

SETTINGS = """\
import torch
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def settings(cfg, classes):
    found = {
        "auto_wrap_policy": ModuleWrapPolicy(classes) if cfg.units else None,
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
        "sharding_strategy": ShardingStrategy[cfg.strategy],
        "limit_all_gathers": True,
    }
    if cfg.sync:
        found.update({"sync_module_states": True})
    return found, classes
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from lib.options import settings


def build(net, cfg):
    given, classes = settings(cfg, cfg.classes)
    net = FSDP(net, **given)
    return net
"""
TWO = TRAIN.replace(
    "    return net\n", "    other = FSDP(cfg.other(), **given)\n    return net, other\n"
)
OF_CLASS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy


class Core:
    defaults = {
        "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
    }

    def build(self, net):
        return FSDP(net, **self.defaults)


def start(core):
    core.defaults["sharding_strategy"] = ShardingStrategy.NO_SHARD
    return core.build(core.net)
"""
SAME_FILE = {"train.py": SETTINGS + TWO.replace("from lib.options import settings\n", "")}
OTHERWISE = {
    "a reader of what becomes another thing": "    print(given['mixed_precision'])\n",
    "another change": "    given.pop('sync_module_states', None)\n",
    "an update from elsewhere": "    given.update(cfg.more)\n",
    "a change under a key that is not written": "    given[cfg.key] = cfg.value\n",
    "a change that reads it": "    given['device_id'] += 1\n",
    "what is no argument": "    given['strategy'] = 1\n",
    "an alias": "    cfg.given = given\n",
    "another call that takes it": "    cfg.wrap(**given)\n",
    "a deletion": "    del given['sync_module_states']\n",
}
ALIKE = {
    "a change": "    given['mixed_precision'] = None\n",
    "a change under a condition": "    if cfg.cpu:\n        given['device_id'] = cfg.device\n",
    "a reader of what stays": "    print(given['limit_all_gathers'])\n",
    "a reader of the strategy": ("    assert given['sharding_strategy'] is not cfg.refused\n"),
    "a policy that is made of its own": (
        "    given['auto_wrap_policy'] = given['auto_wrap_policy'](net)\n"
    ),
}


def files(train: str, settings: str = SETTINGS) -> dict[str, str]:
    return {"lib/__init__.py": "", "lib/options.py": settings, "train.py": train}


def with_line(line: str) -> str:
    return TRAIN.replace("    net = FSDP", f"{line}    net = FSDP")


def test_one_model_is_sharded_where_it_was_wrapped() -> None:
    result, after = migrate(files(TRAIN))
    text = after["train.py"]
    assert 'mp_policy=given["mixed_precision"]' in text
    assert 'sharding_kwargs(given["sharding_strategy"])' in text
    assert 'given.get("sync_module_states", False)' in text
    assert '"mixed_precision": MixedPrecisionPolicy(' in after["lib/options.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))
    again, _ = migrate(after)
    assert not again.changes


@pytest.mark.parametrize("given", [files(TWO), SAME_FILE], ids=["another file", "the same file"])
def test_several_models_are_sharded_by_one_function(given: dict[str, str]) -> None:
    result, after = migrate(given)
    whole = "\n".join(after.values())
    assert whole.count("def shard_model(model, settings):") == 1
    assert "net = shard_model(net, given)" in after["train.py"]
    assert "other = shard_model(cfg.other(), given)" in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))
    again, _ = migrate(after)
    assert not again.changes


def test_the_function_is_imported_as_the_other_is() -> None:
    train = TWO.replace("from lib.options import", "from .options import")
    given = {"lib/__init__.py": "", "lib/options.py": SETTINGS, "lib/train.py": train}
    _, after = migrate(given)
    assert "from .options import settings, shard_model" in after["lib/train.py"]
    train = TWO.replace("from lib.options import settings", "from lib import options")
    _, after = migrate(files(train.replace("= settings(", "= options.settings(")))
    assert "options.shard_model(net, given)" in after["train.py"]


def test_a_function_that_imports_the_other_imports_it_as_well() -> None:
    line = "from lib.options import settings\n"
    train = TWO.replace(line, "").replace("    given,", f"    {line}    given,")
    _, after = migrate(files(train))
    text = after["train.py"]
    assert text.count("    from lib.options import shard_model\n") == 1
    assert text.count("= shard_model(") == 2


def test_a_layer_that_one_of_the_models_has_is_cared_for_in_all() -> None:
    train = TWO.replace(
        "def build(net, cfg):\n",
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = torch.nn.BatchNorm1d(4)\n\n\ndef build(cfg):\n    net = Net()\n",
    )
    _, after = migrate(
        files(f"import torch\n{train.replace('cfg.other()', 'torch.nn.Linear(2, 2)')}")
    )
    assert "isinstance(module, _BatchNorm)" in after["lib/options.py"]
    assert after["train.py"].count("= shard_model(") == 2


@pytest.mark.parametrize("train", [TRAIN, TWO])
def test_what_fsdp2_does_without_leaves_the_dictionary(train: str) -> None:
    options = SETTINGS.replace(
        '"limit_all_gathers": True,',
        '"limit_all_gathers": True,\n        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE,\n'
        '        "forward_prefetch": cfg.ahead(),',
    ).replace("CPUOffload", "BackwardPrefetch")
    result, after = migrate(files(train, options))
    text = after["lib/options.py"]
    assert "limit_all_gathers" not in text
    assert "BackwardPrefetch" not in text
    assert "cfg.ahead()" in text  # it may do anything
    assert all(outcome.value != "left" for _, outcome in outcomes(result))
    asked = with_line(ALIKE["a reader of what stays"])
    _, after = migrate(files(asked, options))
    assert "limit_all_gathers" in after["lib/options.py"]


def test_what_has_to_be_judged_is_marked_once() -> None:
    options = SETTINGS.replace('"limit_all_gathers": True', '"ignored_modules": cfg.ignored')
    _, after = migrate(files(TWO.replace("    other", "    if cfg:\n        other"), options))
    assert after["train.py"].count("# TODO(fsdp-migrate FSDP113)") == 1


def test_models_of_several_kinds_do_not_share_a_function() -> None:
    given = TWO.replace("cfg.other(), **", "cfg.other(), use_orig_params=True, **")
    _, after = migrate(files(given))
    assert "shard_model" not in after["train.py"]
    assert after["train.py"].count("fully_shard(") > 1


def test_what_a_class_has_is_taken_from_where_the_program_may_change_it() -> None:
    result, after = migrate({"core.py": OF_CLASS})
    text = after["core.py"]
    assert 'sharding_kwargs(self.defaults["sharding_strategy"])' in text
    assert 'core.defaults["sharding_strategy"] = ShardingStrategy.NO_SHARD' in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize(
    "added",
    [
        "core.defaults = {}\n",
        "core.defaults.update(core.more)\n",
        "print(core.defaults['mixed_precision'])\n",
        "getattr(core, 'defaults')\n",
        "class Other(Core):\n    defaults = {}\n",
        "Core(defaults={})\n",
    ],
)
def test_what_others_may_do_with_it_is_for_the_running_program(added: str) -> None:
    _, after = migrate({"core.py": f"{OF_CLASS}\n\n{added}"})
    assert "fully_shard(" not in after["core.py"]


@pytest.mark.parametrize("way", ALIKE)
def test_what_a_caller_puts_there_is_what_the_argument_may_be(way: str) -> None:
    result, after = migrate(files(with_line(ALIKE[way])))
    assert "fully_shard(" in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_felt_is_for_the_running_program(way: str) -> None:
    _, after = migrate(files(with_line(OTHERWISE[way])))
    assert "fully_shard(" not in after.get("train.py", "")


def test_a_precision_that_may_be_replaced_by_none_is_that_of_no_precision() -> None:
    line = "    if cfg.plain:\n        given['mixed_precision'] = None\n"
    _, after = migrate(files(with_line(line)))
    assert 'given["mixed_precision"] or MixedPrecisionPolicy()' in after["train.py"]


def test_what_is_surely_replaced_goes_with_what_it_is_replaced_by() -> None:
    result, after = migrate(files(with_line(ALIKE["a change"])))
    assert "mixed_precision" not in after["train.py"] + after["lib/options.py"]
    assert "mp_policy" not in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_a_policy_that_is_asked_for_is_kept() -> None:
    _, after = migrate(files(with_line(ALIKE["a policy that is made of its own"])))
    assert "ModuleWrapPolicy(classes)" in after["lib/options.py"]
    assert "shard_by_policy(" in after["train.py"]


def test_a_program_that_imports_the_function_for_nothing_does_not_hand_it_on() -> None:
    unused = "from lib.options import settings\n"
    program = f"{unused}\nif __name__ == '__main__':\n    print('nothing')\n"
    _, after = migrate({**files(TRAIN), "other.py": program})
    assert "fully_shard(" in after["train.py"]
    _, after = migrate({**files(TRAIN), "other.py": unused})  # or for others to import
    assert "fully_shard(" in after["train.py"]


def test_what_only_shows_it_feels_nothing() -> None:
    _, after = migrate(files(with_line("    print(given)\n")))
    assert "fully_shard(" in after["train.py"]
    assert "print(given)" in after["train.py"]
    _, after = migrate({"core.py": f"{OF_CLASS}\n\nprint(core.defaults)\n"})
    assert "fully_shard(" in after["core.py"]


def test_another_caller_of_the_function_may_want_what_fsdp1_took() -> None:
    given = {
        **files(TRAIN),
        "show.py": "from lib.options import settings\nprint(settings(1, 2))\n",
    }
    _, after = migrate(given)
    assert "fully_shard(" not in after.get("train.py", "")


OF_MODULE = """\
import torch
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from models import Block

ARGUMENTS = dict(
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
    limit_all_gathers=True,
)
"""
SPREAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from options import ARGUMENTS


def build(net, other):
    return Pair(FSDP(net, **ARGUMENTS), FSDP(other, **ARGUMENTS, device_id=0))
"""


def test_what_stands_at_the_top_of_another_file_is_taken_out() -> None:
    result, after = migrate({"options.py": OF_MODULE, "train.py": SPREAD})
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten"}
    assert not any("fsdp2_support" in text for text in after.values())
    assert after["train.py"].count('ARGUMENTS["auto_wrap_policy"]') == 2
    assert "auto_wrap_policy=(Block,)" in after["options.py"]
    assert "limit_all_gathers" not in after["options.py"]


@pytest.mark.parametrize(
    "added",
    [
        "from options import ARGUMENTS as A\n",
        "import options\n\nprint(len(options.ARGUMENTS))\n",
        "import options\n\noptions.ARGUMENTS.update(load())\n",
        "import options\n\ngiven = getattr(options, 'ARGUMENTS')\n",
        "from options import ARGUMENTS\n\n\ndef adapt(key, value):\n    ARGUMENTS[key] = value\n",
    ],
)
def test_what_else_may_happen_to_it_is_for_the_running_program(added: str) -> None:
    _, after = migrate({"options.py": OF_MODULE, "train.py": SPREAD, "other.py": added})
    assert "shard(net, **ARGUMENTS)" in after["train.py"]
    assert "ARGUMENTS[" not in after["train.py"]


SHOWN = """

if __name__ == "__main__":
    shown, _ = settings(Config(), [])
    print(f"It has {shown.keys()}")
"""
PACKAGE = 'from .options import settings\n\n__all__ = ["settings"]\n'


@pytest.mark.parametrize("train", [TRAIN, TWO])
def test_a_file_that_shows_what_its_function_makes_feels_nothing(train: str) -> None:
    """Nor does a package that offers the function."""
    given = files(train, SETTINGS + SHOWN) | {"lib/__init__.py": PACKAGE}
    result, after = migrate(given)
    assert "def shard(" not in "".join(after.values())
    assert "fully_shard(" in "".join(after.values())
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize(
    ("more", "other"),
    [
        ("    shown.pop('limit_all_gathers')\n", ""),
        ("    check(shown.keys())\n", ""),
        ("    print(shown.get)\n", ""),
        ("", "from lib.options import shown\n\nprint(shown)\n"),
        ("", "import lib.options\n\nlib.options.shown.clear()\n"),
    ],
)
def test_what_is_done_with_it_at_the_top_of_a_file_may_be_felt(more: str, other: str) -> None:
    given = files(TRAIN, SETTINGS + SHOWN + more) | {"other.py": other}
    _, after = migrate(given)
    assert "= shard(net, **given)" in after["train.py"]


def test_a_package_that_says_the_name_elsewhere_may_call_it() -> None:
    named = PACKAGE.replace("__all__ = ", "MADE_BY = ")
    _, after = migrate(files(TRAIN) | {"lib/__init__.py": named})
    assert "= shard(net, **given)" in after["train.py"]


def test_what_is_said_of_an_entry_goes_with_it() -> None:
    options = SETTINGS.replace(
        '        "limit_all_gathers": True,\n',
        '        # for fewer of them at once\n        "limit_all_gathers": True,  # slower\n'
        '        # the first\n        "device_id": cfg.device,  # a number\n'
        '        "use_orig_params": True,  # to compile it\n',
    )
    _, after = migrate(files(TRAIN, options))
    said = '        # the first\n        "device_id": cfg.device,  # a number\n    }\n'
    assert said in after["lib/options.py"]
    assert not any(w in after["lib/options.py"] for w in ("at once", "slower", "to compile"))
