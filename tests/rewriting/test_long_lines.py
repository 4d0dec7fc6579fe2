"""Lines that edits make longer than the project's limit are broken, as formatters break them."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.selection import Options
from tests.helpers.migrating import migrate

MODEL = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


def wrap(model, offload):
    return FSDP(model, cpu_offload=CPUOffload(offload_params=True), use_orig_params=True)


model = wrap(nn.Sequential(nn.Linear(2, 2)), True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

"""


def emitted(program: str, limit: int) -> str:
    """What stands below the model afterwards; a second run changes nothing."""
    options = Options(line_length=limit)
    _, after = migrate({"a.py": MODEL + program}, options)
    assert not migrate(after, options)[0].changes
    return after["a.py"].split("lr=0.1)\n\n")[1]


@pytest.mark.parametrize(
    ("limit", "program", "broken"),
    [
        (
            70,
            "def count(unit: FSDP, numbers: list[int], start: int = 0) -> int:\n    return start\n",
            "def count(\n"
            "    unit: FSDPModule,\n"
            "    numbers: list[int],\n"
            "    start: int = 0,\n"
            ") -> int:\n    return start\n",
        ),
        (
            60,
            "def count(unit: FSDP, /, a, *rest, start=0, **more) -> int:\n    return start\n",
            "def count(\n"
            "    unit: FSDPModule,\n"
            "    /,\n"
            "    a,\n"
            "    *rest,\n"
            "    start=0,\n"
            "    **more,\n"
            ") -> int:\n    return start\n",
        ),
        (
            56,
            "class Loop:\n"
            "    def count(self, unit: FSDP, *, start=0) -> int:  # how many\n"
            "        return start\n",
            "class Loop:\n"
            "    def count(\n"
            "        self,\n"
            "        unit: FSDPModule,\n"
            "        *,\n"
            "        start=0,\n"
            "    ) -> int:  # how many\n"
            "        return start\n",
        ),
        (
            88,
            "if 1:\n"
            "    while len(model.layers) and isinstance(model, FSDP) and optimizer.state_dict():\n"
            "        pass\n",
            "if 1:\n"
            "    while (\n"
            "        len(model.layers)\n"
            "        and isinstance(model, FSDPModule)\n"
            "        and optimizer.state_dict()\n"
            "    ):\n"
            "        pass\n",
        ),
        (
            57,
            "def ask(a):\n"
            "    if a:\n"
            "        pass\n"
            "    elif callable(a) and isinstance(a, (str, FSDP)):\n"
            "        return 1\n"
            "    else:\n"
            "        return 2\n",
            "def ask(a):\n"
            "    if a:\n"
            "        pass\n"
            "    elif callable(a) and isinstance(\n"
            "        a, (str, FSDPModule)\n"
            "    ):\n"
            "        return 1\n"
            "    else:\n"
            "        return 2\n",
        ),
        (
            53,
            "def ask(a):\n    for each in pick(a, 1, isinstance(a, FSDP)):\n        print(each)\n",
            "def ask(a):\n"
            "    for each in pick(\n"
            "        a, 1, isinstance(a, FSDPModule)\n"
            "    ):\n"
            "        print(each)\n",
        ),
        (
            60,
            'settings: dict[str, list["torch.distributed.fsdp.FSDP"]] = {}\n',
            'settings: dict[str, list["torch.distributed.fsdp.FSDP"]] = {}\n',
        ),
        (
            60,
            'handles: dict[str, list[FSDP]] = make("a name", "more")\n',
            'handles: dict[\n    str, list[FSDPModule]\n] = make("a name", "more")\n',
        ),
    ],
)
def test_first_lines_of_statements_and_annotations(limit: int, program: str, broken: str) -> None:
    assert emitted(program, limit) == broken


@pytest.mark.parametrize(
    ("limit", "program"),
    [
        (88, "def count(unit: FSDP, numbers: list[int], start: int = 0) -> int:\n    return 0\n"),
        # Far too long already: breaking it would be a change of its own.
        (48, "def count(unit: FSDP, numbers: list[int], start: int = 0) -> int:\n    return 0\n"),
        # Nothing in its first line becomes longer.
        (
            40,
            "def count(numbers: list[int], start: int = 0):\n"
            "    return [isinstance(m, FSDP) for m in numbers]\n",
        ),
        # Its author broke it.
        (40, "def count(unit: FSDP, numbers: list[int],\n          start: int = 0):\n    pass\n"),
    ],
)
def test_what_fits_or_was_too_long_stays_in_one_piece(limit: int, program: str) -> None:
    text = emitted(program, limit)
    assert text.partition("\n")[0] == program.partition("\n")[0].replace("FSDP", "FSDPModule")


def test_a_choice_has_its_parentheses() -> None:
    text = """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def wrap(model, configuration):
    offload = CPUOffload(offload_params=configuration.offload_the_parameters)
    return FSDP(model, cpu_offload=offload, use_orig_params=True)
"""
    _, after = migrate({"a.py": text}, Options(line_length=79))
    assert (
        "    offload = (\n"
        "        CPUOffloadPolicy()\n"
        "        if configuration.offload_the_parameters\n"
        "        else OffloadPolicy()\n"
        "    )\n"
    ) in after["a.py"]


def test_a_choice_that_is_too_long_for_a_line_has_one_for_each_branch() -> None:
    """And a call in it stays in one piece."""
    program = (
        "def clipped(most):\n"
        "    norm = model.clip_grad_norm_(most) if most else torch.zeros(1)\n"
        "    return norm\n"
    )
    assert (
        "    norm = (\n"
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), most).full_tensor()\n"
        "        if most\n"
        "        else torch.zeros(1)\n"
        "    )\n"
    ) in emitted(program, 79)


CHOICE = "MixedPrecision(param_dtype=bfloat16, reduce_dtype=float32) if flag else None"
HALF = f"""\
from torch import bfloat16, float32
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from layers import Layer

def settings(flag):
    return dict(
        mixed_precision={CHOICE},
        use_orig_params=True,
    )

def wrap(model, flag):
    mixed = {CHOICE}
    return FSDP(model, mixed_precision=mixed, auto_wrap_policy=ModuleWrapPolicy([Layer]))

def build(model, flag):
    found = settings(flag)
    print(found)
    FSDP(model.head, **found)
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy([Layer]), **found)
"""


def test_a_branch_that_is_too_long_is_broken_in_the_parentheses_of_the_choice() -> None:
    _, after = migrate({"a.py": HALF}, Options(line_length=79))
    branch = """\
(
            MixedPrecisionPolicy(
                param_dtype=bfloat16,
                reduce_dtype=float32,
                cast_forward_inputs=False,
            )
            if flag
            else None
        )"""
    assert f"    return dict(\n        mixed_precision={branch}" in after["a.py"]
    shorter = branch.replace("\n    ", "\n").replace("None", "MixedPrecisionPolicy()")
    assert f"    mixed = {shorter}\n" in after["a.py"]


def test_what_is_assigned_is_broken_and_not_what_it_is_assigned_to() -> None:
    text = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def wrap(model, configuration):
    found = {}
    found["mixed_precision"] = MixedPrecision(torch.bfloat16, torch.float32)
    return FSDP(model, use_orig_params=True, **found)
"""
    _, after = migrate({"a.py": text}, Options(line_length=79))
    assert '    found["mp_policy"] = MixedPrecisionPolicy(\n' in after["a.py"]


def test_arguments_on_a_line_of_their_own_get_one_each() -> None:
    text = """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def wrap(model, flags):
    return build(
        FSDP(model, use_orig_params=flags.keep), name="first", number=flags.number
    )

def keep(model, flags):
    kept = build(
        FSDP(model, cpu_offload=CPUOffload(offload_params=True)), name="first", number=1
    )
    return kept
"""
    _, after = migrate({"a.py": text}, Options(line_length=79))
    assert (
        "    kept = build(\n"
        "        fully_shard(model, offload_policy=CPUOffloadPolicy()),\n"
        '        name="first",\n'
        "        number=1,\n"
        "    )\n"
    ) in after["a.py"]
    assert '        fully_shard(model), name="first", number=flags.number\n' in after["a.py"]


def test_elements_without_brackets_get_them() -> None:
    text = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def states(model, optimizer):
    model = FSDP(model)
    return model.state_dict(), FSDP.optim_state_dict(model, optimizer)
"""
    _, after = migrate({"a.py": text}, Options(line_length=79))
    function = after["a.py"][after["a.py"].index("def states") :].splitlines()
    assert "    return (" in function
    assert max(map(len, function)) <= 79


def test_a_line_of_what_is_replaced_stays_as_wide_as_it_was() -> None:
    wide = (
        "                    torch.abs(param.grad.data) < eps, "
        "torch.zeros_like(param.grad.data), param.grad.data\n"
    )
    text = f"""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model):
    model = FSDP(model, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    clean(optimizer, 1e-9)
    return model

def clean(optimizer, eps):
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.grad.data = torch.where(
{wide}                )
"""
    _, after = migrate({"a.py": text}, Options(line_length=100))
    assert "copy_(torch.where(\n" + wide in after["a.py"]
