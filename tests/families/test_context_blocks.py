"""What is done to a model in a context of FSDP1's that says which kind of state it gives."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{more}

class Trainer:
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)

    def __init__(self, net):
        self.model = FSDP(net)

{method}
"""
SAVE = """\
    def save(self, path, model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.config):
            BODY
            state = {name: value for name, value in model.state_dict().items()}
        if torch.distributed.get_rank() == 0:
            torch.save(state, path)
"""
NATIVE = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
CONTEXT = "with state_dict_type("


def after(method: str, more: str = "") -> tuple[str, str]:
    result, files = migrate({"train.py": PROGRAM.format(method=method, more=more)})
    assert not result.problems
    return files["train.py"], files.get("fsdp2_support.py", "")


def saved(body: str, more: str = "") -> tuple[str, str]:
    return after(SAVE.replace("BODY", body), more)


MODULE = """
class Net(torch.nn.Module):
    def trained(self):
        return {names}

"""


def test_a_method_of_the_projects_modules_that_reads_parameters_needs_no_context() -> None:
    names = "[n for n, p in self.named_parameters() if p.requires_grad]"
    text, support = saved("trained = model.trained()", MODULE.format(names=names))
    assert "state_dict_type" not in text + support
    assert "TODO" not in text


def test_a_method_of_the_projects_modules_that_asks_for_a_state_keeps_the_context() -> None:
    text, _ = saved("trained = model.trained()", MODULE.format(names="self.state_dict()"))
    assert CONTEXT in text


@pytest.mark.parametrize("body", ["model.export(path)", "model.state_of_params()"])
def test_a_method_that_nothing_is_known_about_keeps_the_context(body: str) -> None:
    assert CONTEXT in saved(body)[0]


def test_a_method_of_a_class_that_is_no_module_says_nothing_of_models() -> None:
    text, _ = saved("model.trained()", MODULE.format(names="1").replace("torch.nn.Module", "Log"))
    assert CONTEXT in text


def test_a_method_about_parameters_by_its_name_is_marked() -> None:
    text, support = saved("names = model.get_trainable_params()")
    assert "state_dict_type" not in text + support
    assert "TODO(fsdp-migrate FSDP301): The model's get_trainable_params() ran" in text


def test_a_function_defined_in_the_block_is_a_part_of_it() -> None:
    text, _ = saved("def names():\n                return model.get_params()\n            names()")
    assert CONTEXT not in text


CHOSEN = """\
    def save(self, path, registry, other):
        model = registry.find(path) if path else torch.nn.Linear(2, 2)
        GET
        if torch.distributed.get_rank() == 0:
            torch.save(state, path)
"""
IN_CONTEXT = """\
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.config):
            state = WHICH.state_dict()"""


def test_what_is_given_to_the_context_around_is_a_model_even_if_it_may_be_several_things() -> None:
    text, support = after(CHOSEN.replace("GET", IN_CONTEXT.replace("WHICH", "model")))
    assert NATIVE in text
    assert "state_dict_type" not in text + support


def test_what_is_not_given_to_the_context_is_none() -> None:
    text, _ = after(CHOSEN.replace("GET", IN_CONTEXT.replace("WHICH", "other")))
    assert "state = other.state_dict()" in text
    assert CONTEXT in text


def test_outside_of_the_context_nothing_is_told() -> None:
    text, _ = after(CHOSEN.replace("GET", "state = model.state_dict()"))
    assert "state = model.state_dict()" in text


NAMED = """
def add(anything, name):
    setattr(anything, f"START{name}", 1)

"""


@pytest.mark.parametrize(("start", "may_be"), [("layer_", False), ("conf", True), ("", True)])
def test_a_name_that_begins_otherwise_sets_no_setting(start: str, may_be: bool) -> None:
    text, _ = saved("pass", NAMED.replace("START", start))
    assert (CONTEXT in text or "getattr" in text) is may_be


def test_settings_have_states_of_their_own() -> None:
    for name in ("args", "self.args", "cfg"):
        text, support = saved(f"settings = {name}.state_dict()", "args = cfg = object()\n")
        assert NATIVE in text
        assert "state_dict_type" not in text + support


@pytest.mark.parametrize("name", ["anything", "args.model", "cfg.net", "config"])
def test_what_may_be_a_model_has_a_state_too(name: str) -> None:
    more = MODULE.format(names="[]") + "config = Net()\n"
    text, support = saved(f"other = {name}.state_dict()", more)
    assert CONTEXT in text
    assert "def state_dict_type" in support
