"""New lines stand as a formatter would put them, in the paragraphs that their author made."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate


def emitted(source: str, line_length: int = 100) -> str:
    result, after = migrate({"a.py": source}, Options(line_length=line_length))
    assert not result.problems
    assert not migrate(after, Options(line_length=line_length))[0].changes
    return after["a.py"]


TWO = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def build(net, teacher, Block, large{further}):
    policy = ModuleWrapPolicy({{Block}})
{body}
"""
ELSE = """\
    if large:
        net = FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    else:
        net = FSDP(net, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    return net"""
IN_A_ROW = """\
    net = FSDP(net, device_id=torch.cuda.current_device(), sync_module_states=True)
    teacher = FSDP(teacher, device_id=torch.cuda.current_device(), sync_module_states=True)
    return net, teacher"""
BETWEEN = """\
    net = FSDP(net, device_id=torch.device("cpu"))
    large = FSDP(large, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD)
    teacher = FSDP(teacher, device_id=torch.device("cpu"))
    return net, large, teacher"""
ON_ONE_LINE = """\
    return (
        FSDP(net, device_id=torch.device("cpu"), use_orig_params=True),
        FSDP(teacher, device_id=torch.device("cpu"), use_orig_params=True),
    )"""


def test_branches_have_the_same_names() -> None:
    after = emitted(TWO.format(body=ELSE, further=""))
    assert after.count("        mesh = init_device_mesh(") == 2
    assert "mesh_2" not in after


def test_the_next_model_may_take_a_name_over() -> None:
    after = emitted(TWO.format(body=IN_A_ROW, further=""))
    assert after.count("    full_state = get_model_state_dict(") == 2
    assert "full_state_2" not in after


def test_a_name_that_is_shared_is_not_taken_over() -> None:
    source = TWO.format(body=BETWEEN, further="").replace("policy = ModuleWrapPolicy({Block})", "")
    after = emitted(source.replace("import Fully", "import ShardingStrategy, Fully"))
    assert "fully_shard(net, mesh=mesh)" in after
    assert "fully_shard(large, mesh=mesh_2)" in after
    assert "fully_shard(teacher, mesh=mesh)" in after


def test_what_a_branch_shares_ends_with_it() -> None:
    cpu = 'device_id=torch.device("cpu")'
    whole = f"    teacher = FSDP(teacher, {cpu}, sharding_strategy=ShardingStrategy.NO_SHARD)\n"
    source = TWO.format(body=ELSE, further="").replace("    return", f"{whole}    return")
    after = emitted(source.replace("import Fully", "import ShardingStrategy, Fully"))
    assert after.count(" mesh = init_device_mesh(") == 3
    assert "fully_shard(teacher, mesh=mesh)" in after


def test_models_of_one_statement_have_names_of_their_own() -> None:
    after = emitted(TWO.format(body=ON_ONE_LINE, further=""))
    assert "fully_shard(net, mesh=mesh)" in after
    assert "fully_shard(teacher, mesh=mesh_2)" in after


def test_a_name_of_the_program_is_not_taken() -> None:
    body = IN_A_ROW.replace("return net, teacher", "return net, teacher, full_state")
    after = emitted(TWO.format(body=body, further=", full_state"))
    assert "    full_state = " not in after
    assert after.count("    full_state_2 = ") == 1
    assert after.count("    full_state_3 = ") == 1


def test_a_dictionary_is_broken_at_its_own_brackets() -> None:
    after = emitted(
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(net, step, path):
    net = FSDP(net)
    states = {"step": step, "kept": [step], "net": net.state_dict(), "path": path}
    torch.save(states, path)
"""
    )
    assert (
        """\
    states = {
        "step": step,
        "kept": [step],
        "net": get_model_state_dict(net, options=StateDictOptions(full_state_dict=True)),
        "path": path,
    }
"""
        in after
    )


def test_a_comprehension_is_broken_at_its_own_brackets() -> None:
    after = emitted(
        """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(nets, path):
    models = {name: FSDP(net) for name, net in nets.items()}
    states = {name: model.state_dict() for name, model in models.items()}
    torch.save(states, path)
"""
    )
    assert (
        """\
    states = {
        name: get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        for name, model in models.items()
    }
"""
        in after
    )


def test_a_paragraph_stays_apart_without_its_first_statement() -> None:
    after = emitted(
        '''\
"""What this trains."""

import functools
import os

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def build(net, Block):
    print(os.getpid())

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    net.train()

    net = FSDP(net, auto_wrap_policy=policy)
    return net
'''
    )
    assert after.startswith('"""What this trains."""\n\nimport os\n\nfrom torch')
    assert "    print(os.getpid())\n\n    net.train()\n\n    for module" in after


def test_a_block_does_not_begin_with_an_empty_line() -> None:
    after = emitted(
        """\
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


def build(net):

    prefetch = BackwardPrefetch.BACKWARD_PRE

    net = FSDP(net, backward_prefetch=prefetch)

    return net
"""
    )
    assert "def build(net):\n    net = fully_shard(net)\n\n    return net\n" in after


FACTORIES = """\
from dataclasses import dataclass, field

from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


@dataclass
class Settings:
    offload: CPUOffload = field(default_factory=lambda: CPUOffload(offload_params={offloads}))
    names: list = field(default_factory=lambda: list())


def build(net):
    return FSDP(net, cpu_offload=Settings().offload)
"""


def test_a_factory_is_a_class_where_its_call_is_new() -> None:
    after = emitted(FACTORIES.format(offloads=False))
    assert "field(default_factory=OffloadPolicy)" in after
    assert "field(default_factory=lambda: list())" in after


TABS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Layer


def first(a):
    return a


def second(a):
    return a


class Trainer:
\tdef __init__(self, net):
\t\tfor part in net.parts:
\t\t\tprint(part)
\t\tself.net = FSDP(net, auto_wrap_policy=ModuleWrapPolicy([Layer]))
"""


def test_new_blocks_among_tabs_have_tabs_where_most_of_the_file_has_spaces() -> None:
    _, after = migrate({"a.py": TABS})
    assert "\t\t\tif module is not net and isinstance(module, Layer):\n" in after["a.py"]
    assert "\t\t\t\tfully_shard(module)\n" in after["a.py"]
    mixed = TABS.replace("\t\t\tprint(part)", "\t\t    print(part)")
    _, after = migrate({"a.py": mixed})
    assert "\t\t    if module is not net and isinstance(module, Layer):\n" in after["a.py"]


LOOPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Layer


def build(net{given}):
    for name, module in net.named_modules():
        print(name, module)
        {inside}
    net = FSDP(net, auto_wrap_policy=ModuleWrapPolicy([Layer]))
    {behind}
    return net
"""


@pytest.mark.parametrize(
    ("given", "inside", "behind", "name"),
    [
        ("", "pass", "pass", "module"),
        ("", "pass", "for module in net.children(): print(module)", "module"),
        ("", "pass", "print(module)", "module_2"),
        (", module", "pass", "pass", "module_2"),
        ("", "net.last = lambda: module", "pass", "module_2"),
        ("", "FSDP(module.a, auto_wrap_policy=ModuleWrapPolicy([Layer]))", "pass", "module_2"),
    ],
)
def test_a_loop_variable_that_is_read_in_its_loops_alone_is_taken(
    given: str, inside: str, behind: str, name: str
) -> None:
    text = LOOPS.format(given=given, inside=inside, behind=behind)
    _, after = migrate({"a.py": text})
    inner = "module.a" if "FSDP" in inside else "net"
    assert f"    for {name} in reversed(list({inner}.modules())):\n" in after["a.py"]
