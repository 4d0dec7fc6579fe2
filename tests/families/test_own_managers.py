"""Context managers of the project's own go where nothing but states in their blocks needs them."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, outcomes

MANAGERS = """\
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def whole(model):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def sharded(model):
    \"\"\"What each rank has.\"\"\"
    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)


"""
MAIN = """\
def main(net, path):
    model = FSDP(net)
    with whole(model):
        torch.save(model.state_dict(), path)
    with sharded(model):
        torch.save(model.state_dict(), f"{path}.part")
    return model


if __name__ == "__main__":
    main(torch.nn.Linear(2, 2), "model.pt")
"""
ONE = MAIN.replace("with whole(model):\n", "with whole(model), open(path) as file:\n")
STAY = {
    "a function that asks below": MAIN.replace("model.state_dict(), path)", "path.of(model))"),
    "another use": MAIN.replace("    return model\n", "    print(whole)\n    return model\n"),
    "a name for what is entered": MAIN.replace("whole(model):", "whole(model) as it:"),
    "an argument that does something": MAIN.replace("whole(model):", "whole(model.eval()):"),
    "an ExitStack": MAIN.replace(
        "with whole(model):\n        ", "stack.enter_context(whole(model))\n    "
    ),
    "a manager that does more": MAIN,
    "a manager that asks for a state": MAIN,
    "another function of that name": MAIN + "\n\ndef whole(model):\n    return model.plain()\n",
    "code that runs in it": MAIN.replace("torch.save(model.state_dict(), path)", "yield model"),
}
OTHER = {
    "a manager that does more": ("        yield\n", "        yield\n    print(model)\n"),
    "a manager that asks for a state": ("        yield\n", "        yield model.state_dict()\n"),
}


def test_they_go_with_all_that_is_for_them() -> None:
    result, after = migrate({"train.py": MANAGERS + MAIN})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    assert "with " not in text
    for gone in ("def whole", "def sharded", "contextmanager", "StateDictType"):
        assert gone not in text
    assert "full_state_dict=True, cpu_offload=True" in text
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_what_else_a_statement_enters_stays() -> None:
    _, after = migrate({"train.py": MANAGERS + ONE})
    assert "    with open(path) as file:\n" in after["train.py"]


def test_those_of_another_file_go_and_callers_out_of_sight_are_spoken_of() -> None:
    files = {"lib/states.py": MANAGERS, "lib/__init__.py": "", "train.py": MAIN}
    files["train.py"] = (
        "import torch\nfrom lib.states import sharded, whole\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n" + MAIN
    )
    result, after = migrate(files)
    assert "with " not in after["train.py"]
    assert "from lib.states" not in after["train.py"]
    assert "def " not in after["lib/states.py"]
    assert "Callers outside the given paths that enter whole()" in after["train.py"].replace(
        "\n    #     ", " "
    )
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_a_support_function_stands_above_what_stays() -> None:
    """The first function of the file, above which it would have been written, goes."""
    optimizer = MAIN.replace(
        "    with sharded(model):\n",
        "    optim = torch.optim.AdamW(model.parameters())\n"
        "    with _all(model):\n"
        "        torch.save(FSDP.optim_state_dict(model, optim), path)\n"
        "    with sharded(model):\n",
    )
    manager = (
        "def _all(model):\n"
        "    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)\n\n\n"
    )
    head, rest = MANAGERS.split("@contextmanager", 1)
    source = f"{head}{manager}@contextmanager{rest}{optimizer}"
    result, after = migrate({"train.py": source})
    assert list(after) == ["train.py"]
    assert "def whole_on_cpu(" in after["train.py"]
    assert "    with " not in after["train.py"]
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


@pytest.mark.parametrize("way", STAY)
def test_they_stay_where_something_else_may_need_them(way: str) -> None:
    old, new = OTHER.get(way, ("", ""))
    managers = MANAGERS.replace(old, new) if old else MANAGERS
    _, after = migrate({"train.py": managers + STAY[way]})
    assert "def whole(model):" in after["train.py"]


CHOOSING = """\
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FullStateDictConfig, ShardedStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def states(model, kind="full"):
    if kind == "full":
        wanted = StateDictType.FULL_STATE_DICT
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    elif kind == "sharded":
        wanted = StateDictType.SHARDED_STATE_DICT
        config = ShardedStateDictConfig(offload_to_cpu=True)
    elif kind == "local":
        wanted = StateDictType.LOCAL_STATE_DICT
        config = None
    else:
        raise ValueError(kind)
    with FSDP.state_dict_type(model, wanted, config):
        yield


def main(net, args):
    model = FSDP(net)
    with states(model, args.kind):
        state = model.state_dict()
    torch.save(state, "model.pt")


if __name__ == "__main__":
    main(torch.nn.Linear(2, 2), None)
"""
UNTOLD = {
    "an argument that does something": ("states(model, args.kind)", "states(model, args.next())"),
    "a manager that does more": (
        '    if kind == "full":\n',
        '    print(kind)\n    if kind == "full":\n',
    ),
    "a kind by another setting": (
        "offload_to_cpu=True, rank0_only=True",
        "offload_to_cpu=model.big",
    ),
    "a function that asks": ("state = model.state_dict()", "state = args.state(model)"),
    "two parameters": ('elif kind == "sharded"', 'elif model == "sharded"'),
}


def test_one_that_chooses_goes_where_the_calls_can_choose() -> None:
    result, after = migrate({"train.py": CHOOSING})
    text = after["train.py"]
    assert list(after) == ["train.py"]
    assert "def states" not in text
    assert 'full_state_dict=args.kind == "full", cpu_offload=args.kind != "local"' in text
    assert "it raised an error: now they give shards" in text.replace("\n    #     ", " ")
    assert all(outcome.value != "left" for _, outcome in outcomes(result))


def test_a_kind_by_name_is_read() -> None:
    _, after = migrate({"train.py": CHOOSING.replace("args.kind)", '"sharded")')})
    assert "StateDictOptions(cpu_offload=True)" in after["train.py"]


@pytest.mark.parametrize("way", UNTOLD)
def test_one_that_chooses_stays_where_the_calls_cannot(way: str) -> None:
    old, new = UNTOLD[way]
    assert old in CHOOSING
    _, after = migrate({"train.py": CHOOSING.replace(old, new)})
    assert "def states(" in after["train.py"]
    assert "with state_dict_type(" in after["train.py"]
