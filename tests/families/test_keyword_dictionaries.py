"""Arguments in a dictionary are written out only where the call would be given the same."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate, outcomes

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


"""
PLAIN = """\
def build(net, cfg):
    params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, ignored_states=cfg.frozen)
    return FSDP(net, **params)
"""
OTHERWISE = {
    "a change by a method": PLAIN.replace("    return", "    params.update(cfg.more)\n    return"),
    "a change behind an alias": PLAIN.replace(
        "    return", "    other = params\n    other['use_orig_params'] = True\n    return"
    ),
    "a change in a loop": PLAIN.replace(
        "    return", "    for name in cfg:\n        params[name] = cfg[name]\n    return"
    ),
    "a call that it is handed to": PLAIN.replace("    return", "    cfg.check(params)\n    return"),
    "another reader": PLAIN.replace("    return", "    print(*params)\n    return"),
    "a second use": f"{PLAIN[:-1]}, cfg.other(**params)\n",
    "a second value": PLAIN.replace("    return", "    params = cfg.params or params\n    return"),
    "a copy of another": PLAIN.replace("dict(", "dict(cfg.defaults, "),
    "another dictionary in it": PLAIN.replace("dict(", "dict(**cfg.defaults, "),
    "what is no argument": PLAIN.replace("dict(", "dict(strategy=1, "),
    "a reader inside of a function": PLAIN.replace(
        "    return", "    def later():\n        params.clear()\n\n    later()\n    return"
    ),
}


def is_for_the_running_program(source: str) -> None:
    """The call takes the dictionary as it is, or is left."""
    result, after = migrate({"train.py": HEAD + source})
    text = after["train.py"]
    left = any(outcome.value == "left" for _, outcome in outcomes(result))
    assert "fully_shard(" not in text
    assert left or "shard(net, **params)" in text
    assert "could not be edited" not in str([d.message for d in result.decisions])


def test_what_is_only_for_the_call_is_written_out() -> None:
    result, after = migrate({"train.py": HEAD + PLAIN})
    assert list(after) == ["train.py"]
    assert "fully_shard(net, **params)" in after["train.py"]
    assert "reshard_after_forward=False" in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_may_be_another_dictionary_is_for_the_running_program(way: str) -> None:
    is_for_the_running_program(OTHERWISE[way])


CHOSEN = """\
def build(net, cfg):
    if cfg.keep:
        params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=cfg.device)
    else:
        params = {"device_id": cfg.device}
    return FSDP(net, **params)
"""
BOTH = """\
def build(net, cfg):
    if cfg.keep:
        params = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    else:
        params = dict(sharding_strategy=ShardingStrategy.FULL_SHARD)
    return FSDP(net, **params)
"""
RETURNED = """\
def settings(cfg):
    if cfg.keep:
        return {"sharding_strategy": cfg.one}
    return {"sharding_strategy": cfg.other}


def build(net, cfg):
    params = settings(cfg)
    return FSDP(net, **params)
"""
REBOUND = """\
def settings(cfg):
    value = FIRST
    if cfg.keep:
        return {"ARGUMENT": value}
    value = SECOND
    return {"ARGUMENT": value}


def build(net, cfg):
    params = settings(cfg)
    return FSDP(net, **params)
"""
BRANCHES = {
    "strategies in both": BOTH,
    "in both branches of a condition": CHOSEN,
    "in three branches": CHOSEN.replace(
        "    else:", "    elif cfg.plain:\n        params = dict(device_id=cfg.device)\n    else:"
    ),
    "one in the place of another": CHOSEN.replace("    else:\n        params", "    other")
    .replace("    if cfg", "    params = dict(device_id=cfg.device)\n    if cfg")
    .replace('    other = {"device_id": cfg.device}\n', ""),
    "in try and except": CHOSEN.replace("    if cfg.keep:", "    try:").replace(
        "    else:", "    except AttributeError:"
    ),
    "in a loop": CHOSEN.replace("    if", "    for _ in cfg.rounds:\n      if").replace(
        "    else", "      else"
    ),
    "and changed in one of them": CHOSEN.replace(
        '{"device_id": cfg.device}', "{}\n        params['device_id'] = cfg.device"
    ),
    "and changed behind both": CHOSEN.replace(
        "    return", "    params['forward_prefetch'] = True\n    return"
    ),
    "and changed under a further condition": CHOSEN.replace(
        "    return", "    if cfg.old:\n        params['use_orig_params'] = True\n    return"
    ),
}
OF_ONE_BRANCH = {
    "a copy": CHOSEN.replace('{"device_id": cfg.device}', "dict(cfg.params)"),
    "the call in a branch": CHOSEN.replace(
        "    else:", "        net.head = FSDP(net.head, **params)\n    else:"
    ),
    "a reader in one": CHOSEN.replace("    else:", "        print(len(params))\n    else:"),
    "another change in one": CHOSEN.replace("    else:", "        params.pop('x', 0)\n    else:"),
}
OF_ONE_RETURN = {
    "a return of nothing": RETURNED.replace('return {"sharding_strategy": cfg.one}', "return None"),
    "a copy": RETURNED.replace('{"sharding_strategy": cfg.other}', "dict(cfg.params)"),
}
STRATEGY = 'sharding_kwargs(params["sharding_strategy"])'
STRATEGIES = {
    "a strategy that needs a mesh": BOTH.replace("FULL_SHARD", "NO_SHARD"),
    "another strategy that needs a mesh": BOTH.replace("SHARD_GRAD_OP", "HYBRID_SHARD"),
    "strategies that are not in sight": BOTH.replace(
        "ShardingStrategy.SHARD_GRAD_OP", "cfg.one"
    ).replace("ShardingStrategy.FULL_SHARD", "cfg.other"),
    "one strategy that is not in sight": BOTH.replace("ShardingStrategy.FULL_SHARD", "cfg.other"),
    "strategies of returns that are not in sight": RETURNED,
    "strategies of returns that need a mesh": RETURNED.replace(
        "cfg.one", "ShardingStrategy.NO_SHARD"
    ).replace("cfg.other", "ShardingStrategy.FULL_SHARD"),
}
TAKEN_OUT = {
    "what only one has": (
        RETURNED.replace('"sharding_strategy": cfg.one', '"device_id": cfg.one'),
        'sharding_kwargs(params.get("sharding_strategy")',
    ),
    **{
        f"a name of two values for {argument}": (
            REBOUND.replace("ARGUMENT", argument).replace("FIRST", first).replace("SECOND", second),
            written,
        )
        for argument, first, second, written in (
            (
                "mixed_precision",
                "MixedPrecision(torch.bfloat16)",
                "None",
                'params["mixed_precision"] or MixedPrecisionPolicy()',
            ),
            (
                "auto_wrap_policy",
                "ModuleWrapPolicy({torch.nn.Linear})",
                "None",
                'isinstance(module, params["auto_wrap_policy"] or ())',
            ),
            (
                "cpu_offload",
                "CPUOffload(offload_params=True)",
                "None",
                'params["cpu_offload"] or OffloadPolicy()',
            ),
            (
                "device_id",
                "torch.device('cpu')",
                "torch.cuda.current_device()",
                'torch.device(params["device_id"]).type',
            ),
            ("ignored_states", "cfg.frozen", "[]", 'list(params["ignored_states"] or ())'),
        )
    },
    **{way: (each, STRATEGY) for way, each in STRATEGIES.items()},
    "an attribute of two values": (
        REBOUND.replace("value", "cfg.value")
        .replace("ARGUMENT", "ignored_states")
        .replace("FIRST", "cfg.frozen")
        .replace("SECOND", "[]"),
        'list(params["ignored_states"] or ())',
    ),
}


@pytest.mark.parametrize("way", BRANCHES)
def test_one_of_several_dictionaries_is_written_where_each_is_made(way: str) -> None:
    result, after = migrate({"train.py": HEAD + BRANCHES[way]})
    assert list(after) == ["train.py"]
    assert "fully_shard(net, **params)" in after["train.py"]
    assert after["train.py"].count("reshard_after_forward=False") == 1
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize(
    "source",
    [*OF_ONE_BRANCH.values(), *OF_ONE_RETURN.values()],
    ids=[*OF_ONE_BRANCH, *OF_ONE_RETURN],
)
def test_what_only_some_of_them_have_is_for_the_running_program(source: str) -> None:
    is_for_the_running_program(source)


@pytest.mark.parametrize("way", TAKEN_OUT)
def test_what_differs_from_place_to_place_is_taken_out_of_the_dictionary(way: str) -> None:
    source, written = TAKEN_OUT[way]
    _, after = migrate({"train.py": HEAD + source})
    assert written in after["train.py"]
    assert "fully_shard(" in after["train.py"]


EITHER = """\
def train(net, cfg, batches):
    params = {"sharding_strategy": ShardingStrategy.FULL_SHARD}
    if cfg.keep:
        params["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
    net = FSDP(net, **params)
    with net.no_sync():
        net(next(batches)).sum().backward()
    return net
"""


@pytest.mark.parametrize(
    ("source", "keeps"),
    [
        pytest.param(EITHER, False, id="replaced under a condition"),
        pytest.param(EITHER.replace("FULL_SHARD", "SHARD_GRAD_OP"), True, id="the same in both"),
        pytest.param(
            EITHER.replace('"sharding_strategy": ShardingStrategy.FULL_SHARD', ""),
            False,
            id="lacking",
        ),
    ],
)
def test_what_keeps_parameters_gathered_is_asked_of_every_value(source: str, keeps: bool) -> None:
    """Under SHARD_GRAD_OP alone ``no_sync`` kept them between backward and the next forward."""
    result, after = migrate({"train.py": HEAD + source})
    assert 'params["reshard_after_forward"] = False' in after["train.py"]
    assert ("set_reshard_after_backward(False)" in after["train.py"]) is keeps
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("target", ["2.7", "2.13"])
def test_a_choice_in_one_place_says_nothing_of_the_other(target: str) -> None:
    source = EITHER.replace(
        "ShardingStrategy.SHARD_GRAD_OP",
        "ShardingStrategy.SHARD_GRAD_OP if cfg.grads else ShardingStrategy.FULL_SHARD",
    )
    _, after = migrate({"train.py": HEAD + source}, Options(target=Version(target)))
    full = "True" if target == "2.7" else "None"
    assert f'params = {{"reshard_after_forward": {full}}}' in after["train.py"]
    assert f'["reshard_after_forward"] = False if cfg.grads else {full}' in after["train.py"]


PREFETCHING = """\
from torch.distributed.fsdp import BackwardPrefetch

def build(net, cfg):
    params = {{"sharding_strategy": {strategy}, "limit_all_gathers": cfg.limit}}
    if cfg.offload:
        params["cpu_offload"] = CPUOffload(offload_params=True)
    if cfg.prefetch == "pre":
        params["backward_prefetch"] = BackwardPrefetch.{first}
    elif cfg.prefetch == "post":
        params["backward_prefetch"] = BackwardPrefetch.BACKWARD_POST
{rest}    return FSDP(net, **params)
"""


@pytest.mark.parametrize("first", ["BACKWARD_PRE", "BACKWARD_POST"])
def test_what_has_no_use_may_be_put_there_in_several_branches(first: str) -> None:
    source = PREFETCHING.format(strategy="ShardingStrategy.SHARD_GRAD_OP", first=first, rest="")
    _, after = migrate({"train.py": HEAD + source})
    assert list(after) == ["train.py"]  # no support file
    text = after["train.py"]
    assert "fully_shard(net, **params)" in text
    is_said = first == "BACKWARD_POST"  # with a choice there was always BACKWARD_PRE's memory
    assert ("FSDP204" in text) == is_said
    assert ("cfg.prefetch" in text) == is_said


def test_a_branch_that_does_something_keeps_the_others() -> None:
    rest = '    else:\n        cfg.warn("no prefetching")\n'
    strategy = "ShardingStrategy.SHARD_GRAD_OP"
    source = PREFETCHING.format(strategy=strategy, first="BACKWARD_PRE", rest=rest)
    _, after = migrate({"train.py": HEAD + source})
    assert 'elif cfg.prefetch == "post":\n        pass\n    else:' in after["train.py"]


def test_what_has_no_use_goes_from_branches_of_a_dictionary_that_stays() -> None:
    precision = """
    if cfg.half:
        params["mixed_precision"] = MixedPrecision(param_dtype=torch.float16)
    elif cfg.brain:
        params["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
"""
    strategy = "ShardingStrategy.SHARD_GRAD_OP"
    source = PREFETCHING.format(strategy=strategy, first="BACKWARD_PRE", rest=precision[1:])
    result, after = migrate({"train.py": HEAD + source})
    assert not result.problems
    assert 'params.get("mixed_precision")' in after["train.py"]
    assert "limit_all_gathers" not in after["train.py"]
    assert "BackwardPrefetch" not in after["train.py"]


def test_a_dictionary_that_nothing_is_left_of_is_two_braces() -> None:
    source = PREFETCHING.format(strategy="1", first="BACKWARD_PRE", rest="")
    source = source.replace('{"sharding_strategy": 1, "limit', '{\n        "limit')
    _, after = migrate({"train.py": HEAD + source.replace("cfg.limit}", "cfg.limit,\n    }")})
    assert "    params = {}\n" in after["train.py"]


def test_no_condition_stays_around_nothing() -> None:
    source = BRANCHES["and changed under a further condition"]
    _, after = migrate({"train.py": HEAD + source})
    assert "cfg.old" not in after["train.py"]
    assert "pass" not in after["train.py"]


MESH = """\
def build(net, cfg):
    mesh = None
    params = {"use_orig_params": True}
    if cfg.replicas:
        mesh = cfg.make_mesh(cfg.replicas)
        params["device_mesh"] = mesh
    return FSDP(net, sharding_strategy=cfg.strategy, **params)
"""
TRIED = (
    MESH.replace("sharding_strategy=cfg.strategy, ", "")
    .replace("    if cfg", "    try:\n     if cfg")
    .replace("        mesh = cfg", "         mesh = cfg")
    .replace("        params[", "         params[")
    .replace("    return", "    except OSError:\n        pass\n    return")
)
MESH_OF_EITHER = 'sharding_kwargs(cfg.strategy, mesh=params.get("device_mesh"))'
LACKED = {
    "another value otherwise": MESH.replace("mesh = None", "mesh = cfg.mesh"),
    "a third value": MESH.replace("    return", "    if cfg.flat:\n        mesh = 1\n    return"),
    "an entry under another condition": MESH.replace(
        "        params[", "    if cfg.hybrid:\n        params["
    ),
    "a value under a condition of its own": MESH.replace(
        "    mesh = None\n", "    if cfg.flat:\n        mesh = None\n"
    ),
    "a parameter": MESH.replace("cfg):\n    mesh = None", "cfg, mesh):\n    pass"),
    "the other branch": MESH.replace("        params[", "    else:\n        params["),
    "a loop that comes back to it": """\
def build(nets, cfg):
    mesh = None
    made = []
    for net in nets:
        params = {"use_orig_params": True}
        if net in cfg.replicas:
            mesh = cfg.make_mesh(cfg.replicas)
            params["device_mesh"] = mesh
        net = FSDP(net, sharding_strategy=cfg.strategy, **params)
        made.append(net)
    return made
""",
    "no None for that argument": MESH.replace('"device_mesh"', '"sync_module_states"'),
}


def test_what_a_dictionary_lacks_while_its_value_is_none_is_none() -> None:
    result, after = migrate({"train.py": HEAD + MESH})
    text = after["train.py"]
    assert "sharding_kwargs(cfg.strategy, mesh=mesh)" in text
    assert "params" not in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_what_is_put_there_in_a_try_is_for_the_running_program() -> None:
    is_for_the_running_program(TRIED)


@pytest.mark.parametrize("way", LACKED)
def test_what_it_may_lack_otherwise_is_asked_for_at_the_call(way: str) -> None:
    result, after = migrate({"train.py": HEAD + LACKED[way]})
    text = after["train.py"]
    asked = 'params.get("sync_module_states", False)' if "no None" in way else MESH_OF_EITHER
    assert asked in text
    assert "use_orig_params" not in text
    assert " shard(" not in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


FROZEN = 'list(params["ignored_states"] or ())'
ASKED_FOR = {
    "an attribute that is set in between": (
        PLAIN.replace("    return", "    cfg.frozen = list(net.parameters())\n    return"),
        FROZEN,
    ),
    "a name that is bound in between": (
        PLAIN.replace("cfg.frozen)", "cfg)").replace("    return", "    cfg = []\n    return"),
        FROZEN,
    ),
    "what only one has": (
        CHOSEN.replace('{"device_id": cfg.device}', "{}"),
        'device_id = params.get("device_id")',
    ),
    "other values": (
        CHOSEN.replace('{"device_id": cfg.device}', '{"device_id": cfg.other}'),
        'torch.device(params["device_id"])',
    ),
    "precisions that are made in each": (
        BOTH.replace("_OP)", "_OP, MP)")
        .replace("_SHARD)", "_SHARD, MP)")
        .replace("MP", "mixed_precision=MixedPrecision(torch.bfloat16)"),
        'mp_policy=params["mixed_precision"]',
    ),
    "a policy in one case": (
        PLAIN.replace("ignored_states=cfg.frozen", "device_id=0").replace(
            "    return",
            "    if cfg.units:\n"
            "        params.update(\n"
            "            auto_wrap_policy=ModuleWrapPolicy(cfg.units), forward_prefetch=True\n"
            "        )\n"
            "    return",
        ),
        "isinstance(module, wrap_classes or ())",
    ),
    "a policy in an empty dictionary": (
        "def build(net, cfg):\n"
        "    params = {}\n"
        "    if cfg.units:\n"
        "        params['auto_wrap_policy'] = ModuleWrapPolicy(cfg.units)\n"
        "    return FSDP(net, **params)\n",
        'wrap_classes = params.get("auto_wrap_policy")',
    ),
    "at the top of the file": (
        "from models import UNITS, net\n\n"
        "params = {'device_id': 0}\n"
        "if UNITS:\n"
        "    params['auto_wrap_policy'] = ModuleWrapPolicy(UNITS)\n"
        "net = FSDP(net, **params)\n",
        'wrap_classes = params.get("auto_wrap_policy")',
    ),
    "hybrid sharding over a mesh in one case": (
        PLAIN.replace("SHARD_GRAD_OP, ignored_states=cfg.frozen", "HYBRID_SHARD, POLICY")
        .replace("POLICY", "auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear})")
        .replace(
            "    return", "    if cfg.mesh:\n        params['device_mesh'] = cfg.mesh\n    return"
        ),
        'sharding_kwargs(params["sharding_strategy"], mesh=params.get("device_mesh"))',
    ),
    "a group of those that take rank 0's weights": (
        PLAIN.replace("ignored_states=cfg.frozen", "sync_module_states=True").replace(
            "    return",
            "    if cfg.some:\n        params['process_group'] = cfg.group\n    return",
        ),
        'group=params.get("process_group"), group_src=0',
    ),
    "two calls": (
        CHOSEN.replace('{"device_id": cfg.device}', "{}").replace(
            "    return", "    cfg.teacher = FSDP(cfg.teacher, **params)\n    return"
        ),
        'params.get("device_id")',
    ),
}


@pytest.mark.parametrize("way", ASKED_FOR)
def test_what_is_another_thing_at_the_call_is_asked_for_there(way: str) -> None:
    source, written = ASKED_FOR[way]
    result, after = migrate({"train.py": HEAD + source})
    text = after["train.py"]
    assert written in text
    assert "fully_shard(" in text
    assert " shard(" not in text
    assert "forward_prefetch" not in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


OFFLOADED = """\
def build(net, cfg):
    params = {"device_id": cfg.device}
    if cfg.offload:
        params["cpu_offload"] = CPUOffload(offload_params=True)
    return FSDP(net, **params)
"""


def test_an_offload_in_one_case_is_an_entry() -> None:
    _, after = migrate({"train.py": HEAD + OFFLOADED})
    assert '    params["offload_policy"] = CPUOffloadPolicy()\n' in after["train.py"]
    assert "fully_shard(net, **params)" in after["train.py"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param("if cfg.offload:\n        log(params)", id="read"),
        pytest.param("for name in cfg.more:\n        params[name] = cfg[name]", id="in a loop"),
        pytest.param("if cfg.other:\n        params = cfg.params", id="another dictionary"),
    ],
)
def test_an_offload_in_a_dictionary_of_others_is_for_the_running_program(other: str) -> None:
    is_for_the_running_program(OFFLOADED.replace("    return", f"    {other}\n    return"))


def test_memory_for_an_offload_in_one_case_is_not_written_as_an_entry() -> None:
    source = OFFLOADED.replace("cfg.device}", "cfg.device, 'param_init_fn': cfg.init}")
    _, after = migrate({"train.py": HEAD + source})
    assert "offload_policy" not in after["train.py"]
