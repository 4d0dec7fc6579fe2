"""A dictionary that a function makes is followed to the parameters that get it."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.selection import Options
from tests.helpers.migrating import migrate, outcomes

SETTINGS = """\
import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def settings():
    found = dict(
        auto_wrap_policy=size_based_auto_wrap_policy,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        cpu_offload=CPUOffload(offload_params=False),
    )
    return found
"""
MODELS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Pair(nn.Module):
    def __init__(self, width, given=None):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        if given:
            self.first = FSDP(self.first, **given)

    def forward(self, x):
        return self.second(self.first(x))
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from models import Pair
from options import settings

CONFIG = {"width": 8, "model_cls": Pair}


def create(config, model_cls, given):
    return model_cls(config["width"], given)


def build():
    given = settings()
    given["auto_wrap_policy"] = None
    model = create(CONFIG, CONFIG["model_cls"], given)
    return FSDP(model, **given)
"""
AT_ONCE = '    given["auto_wrap_policy"] = None\n'


def files(train: str = TRAIN, models: str = MODELS, options: str = SETTINGS) -> dict[str, str]:
    return {"options.py": options, "models.py": models, "train.py": train}


def test_a_class_out_of_a_table_takes_its_arguments_out_of_the_dictionary() -> None:
    result, after = migrate(files())
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten"}
    assert list(after) == ["options.py", "models.py", "train.py"]
    assert 'fully_shard(self.first, mp_policy=given["mixed_precision"])' in after["models.py"]
    assert 'replace(given["mixed_precision"], cast_forward_inputs=True)' in after["train.py"]
    gone = ("auto_wrap_policy", "sharding_strategy", "backward_prefetch", "cpu_offload")
    assert not any(name in text for name in gone for text in after.values())
    again, _ = migrate(after)
    assert not again.changes


OTHERWISE = {
    "a change by a function that is called with it": TRAIN.replace(
        "    model = create", "    given.update(load())\n    model = create"
    ),
    "what collects arguments changes it": TRAIN.replace(
        "create(config, model_cls, given):", "create(config, model_cls, *more):\n    adapt(more)"
    ).replace('config["width"], given', 'config["width"], *more'),
    "what collects arguments gets another one too": TRAIN.replace(
        "create(config, model_cls, given):",
        "create(config, model_cls, **more):\n    more['given'] = load()",
    )
    .replace('config["width"], given', 'config["width"], **more')
    .replace('"model_cls"], given)', '"model_cls"], given=given)'),
    "a function of another library gets it": TRAIN.replace(
        "    model = create", "    check(given)\n    model = create"
    ).replace("from models", "from checking import check\nfrom models"),
    "a parameter that gets it has another value later": TRAIN.replace(
        "    return model_cls", "    given = given or config['given']\n    return model_cls"
    ),
    "another caller gives another dictionary": f"{TRAIN}\n\ndef other(cfg):\n"
    "    return create(CONFIG, CONFIG['model_cls'], cfg.load())\n",
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_another_dictionary_is_for_the_running_program(way: str) -> None:
    assert OTHERWISE[way] != TRAIN
    _, after = migrate(files(OTHERWISE[way]))
    assert "fully_shard(" not in after["models.py"] + after["train.py"]


@pytest.mark.parametrize(
    "between",
    [
        "    print(given['auto_wrap_policy'])\n",
        "    first = FSDP(net, **given)\n",
        "    if net is not None:\n    " + AT_ONCE + "    other = given.get('device_id')\n",
    ],
)
def test_what_may_be_read_before_it_is_replaced_stays(between: str) -> None:
    train = TRAIN.replace(AT_ONCE, between + AT_ONCE).replace("def build()", "def build(net)")
    _, after = migrate(files(train))
    assert "size_based_auto_wrap_policy" in after["options.py"]


def test_a_dictionary_is_not_emptied_that_something_asks_for_being_empty() -> None:
    options = SETTINGS.replace(
        "        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),\n", ""
    )
    _, after = migrate(files(options=options))
    assert "fully_shard(" not in after["models.py"]
    plain = MODELS.replace("if given:", "if given is not None:")
    _, after = migrate(files(options=options, models=plain))
    assert "fully_shard(self.first)" in after["models.py"]


ADAPT = """\
def adapt(each):
    each["use_orig_params"] = True


def build()"""


def test_a_function_that_is_given_other_dictionaries_too_keeps_its_statements() -> None:
    adapted = TRAIN.replace(AT_ONCE, "    adapt(given)\n    adapt(CONFIG)\n")
    adapted = adapted.replace("def build()", ADAPT)
    _, after = migrate(files(adapted))
    assert 'each["use_orig_params"] = True' in after["train.py"]


def test_a_function_that_wraps_with_other_dictionaries_too_is_for_the_running_program() -> None:
    train = TRAIN.replace(
        "    return FSDP(model, **given)", "    wrap(model, given)\n    return FSDP(model, **given)"
    )
    train += "\n\ndef wrap(net, each):\n    return FSDP(net, **each)\n"
    train += "\n\ndef other(net, cfg):\n    return wrap(net, cfg.load())\n"
    _, after = migrate(files(train))
    assert "fully_shard(" not in after["train.py"]


def test_what_may_be_put_into_another_dictionary_of_the_name_stays() -> None:
    text = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Core:
    defaults = {
        "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16),
        "limit_all_gathers": True,
    }

    def build(self, net):
        return FSDP(net, **self.defaults)


def start(other):
    other.defaults["limit_all_gathers"] = True
"""
    _, after = migrate({"core.py": text})
    assert 'other.defaults["limit_all_gathers"] = True' in after["core.py"]


def test_a_call_of_the_programs_own_runs_still() -> None:
    options = SETTINGS.replace("=size_based_auto_wrap_policy", "=choose_policy()")
    _, after = migrate(files(options=options))
    assert "choose_policy()" in after["options.py"]


COLLECTED = {
    "by place": TRAIN.replace(
        "create(config, model_cls, given)", "create(config, model_cls, *more)"
    ).replace('config["width"], given', 'config["width"], *more'),
    "by name": TRAIN.replace(
        "create(config, model_cls, given)", "create(config, model_cls, **more)"
    )
    .replace('config["width"], given', 'config["width"], **more')
    .replace('create(CONFIG, CONFIG["model_cls"], given)', "create(CONFIG, Pair, given=given)"),
    "by a base class": TRAIN.replace('"model_cls": Pair', '"model_cls": Other').replace(
        "\n\nCONFIG",
        "\n\n\nclass Other(Pair):\n    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n\n\nCONFIG",
    ),
}


@pytest.mark.parametrize("way", COLLECTED)
def test_what_only_hands_on_what_it_collects_is_followed(way: str) -> None:
    result, after = migrate(files(COLLECTED[way]))
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten"}
    assert 'fully_shard(self.first, mp_policy=given["mixed_precision"])' in after["models.py"]


ADAPTERS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp import ShardingStrategy

from models import Pair


class Adapted(nn.Module):
    def __init__(self, width, given=None, **kwargs):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        if given is not None:
            chosen = kwargs.get("for_adapters", given)
            self.first = FSDP(self.first, **chosen)

    def forward(self, x):
        return self.second(self.first(x))


def adapter_settings():
    def policy(module, *args, **kwargs):
        return isinstance(module, nn.Linear)

    found = dict(
        auto_wrap_policy=policy,
        mixed_precision=MixedPrecision(param_dtype=torch.float16),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
    )
    return found
"""
EITHER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from adapters import Adapted, adapter_settings
from models import Pair
from options import settings

CONFIG = {"width": 8, "model_cls": Pair}


def create(config, model_cls, given, **kwargs):
    return model_cls(config["width"], given, **kwargs)


def build():
    given = settings()
    given["auto_wrap_policy"] = None
    if CONFIG["model_cls"] == Adapted:
        chosen = adapter_settings()
        model = create(CONFIG, CONFIG["model_cls"], given, for_adapters=chosen)
    else:
        model = create(CONFIG, CONFIG["model_cls"], given)
    return FSDP(model, **given)
"""


def test_one_of_two_dictionaries_that_a_setting_chooses() -> None:
    either = {**files(EITHER), "adapters.py": ADAPTERS}
    result, after = migrate(either, Options(published=False))
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten"}
    adapters = after["adapters.py"]
    assert 'wrap_policy = chosen.get("auto_wrap_policy")' in adapters
    assert 'fully_shard(self.first, mp_policy=chosen["mixed_precision"])' in adapters
    assert "auto_wrap_policy" not in after["train.py"] + after["options.py"]
    assert "ShardingStrategy" not in adapters
    again, _ = migrate(after, Options(published=False))
    assert not again.changes


def test_two_dictionaries_that_say_different_things_are_for_the_running_program() -> None:
    other = ADAPTERS.replace("FULL_SHARD", "SHARD_GRAD_OP")
    _, after = migrate({**files(EITHER), "adapters.py": other}, Options(published=False))
    assert "SHARD_GRAD_OP" in after["adapters.py"]
    assert "fully_shard(self" not in after["adapters.py"]


SPARE = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Spare(nn.Module):
    def __init__(self, width, given=None):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        if given:
            self.first = FSDP(self.first, **given)
            self.second = FSDP(self.second, **given)

    def forward(self, x):
        return self.second(self.first(x))
"""


def test_a_class_that_nothing_makes_is_given_what_others_are_and_that_is_said() -> None:
    result, after = migrate({**files(), "spare.py": SPARE}, Options(published=False))
    assert {outcome.value for _, outcome in outcomes(result)} == {"rewritten", "review"}
    assert after["spare.py"].count('given["mixed_precision"]') == 2
    assert after["spare.py"].count("# TODO(fsdp-migrate FSDP101): Nothing here makes Spare") == 1


def test_a_class_that_users_may_make_is_given_anything() -> None:
    _, after = migrate({**files(), "spare.py": SPARE}, Options(published=True))
    assert "fully_shard(self" not in after["spare.py"]


def test_a_class_that_nothing_makes_has_no_dictionary_of_another_name() -> None:
    other = SPARE.replace("given", "options")
    _, after = migrate({**files(), "spare.py": other}, Options(published=False))
    assert "fully_shard(self" not in after["spare.py"]


OTHER = "{'sharding_strategy': ShardingStrategy.SHARD_GRAD_OP}"


@pytest.mark.parametrize(
    "made",
    [
        f"executor.submit(spare.Spare, 8, {OTHER})",
        f"TABLE[name](8, {OTHER})",
        f"getattr(spare, name)(8, {OTHER})",
        f"getattr(importlib.import_module(name), 'Spare')(8, {OTHER})",
        f"load('spare', 'Spare')(8, {OTHER})",
    ],
)
def test_a_class_that_is_handed_on_may_be_given_anything(made: str) -> None:
    other = f"""\
import importlib

import spare
from torch.distributed.fsdp import ShardingStrategy

TABLE = {{}}
{"TABLE['spare'] = spare.Spare" if "TABLE" in made else ""}


def other(name, executor, load):
    return {made}
"""
    program = {**files(), "spare.py": SPARE, "other.py": other}
    _, after = migrate(program, Options(published=False))
    assert "Nothing here makes Spare" not in after["spare.py"]
    assert "fully_shard(self" not in after["spare.py"]


def test_a_class_with_a_decorator_may_be_given_anything() -> None:
    registered = SPARE.replace("class Spare", "@registry.register\nclass Spare")
    registered = registered.replace("from torch import nn", "import registry\nfrom torch import nn")
    _, after = migrate({**files(), "spare.py": registered}, Options(published=False))
    assert "Nothing here makes Spare" not in after["spare.py"]


def test_a_class_that_is_asked_for_alone_is_given_what_others_are() -> None:
    other = "import spare\n\n\ndef is_spare(net):\n    return isinstance(net, spare.Spare)\n"
    program = {**files(), "spare.py": SPARE, "other.py": other}
    _, after = migrate(program, Options(published=False))
    assert "Nothing here makes Spare" in after["spare.py"]
