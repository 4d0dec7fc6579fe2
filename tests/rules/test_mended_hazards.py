"""What ``rewrite --hazards`` puts right, and what it leaves since another form may be meant."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from tests.helpers.hazards import codes, hazards, mended, notes

HEAD = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


"""
EARLY = """\
def main(model, mesh):
    BUILT
    fully_shard(model, mesh=mesh)
    return model, optimizer
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
MOVED = {
    "alone": SGD,
    "with a scheduler": f"{SGD}\n    rate = torch.optim.lr_scheduler.StepLR(optimizer, 3)",
    "of some parameters": (
        "optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)"
    ),
    "of groups": (
        'optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 1e-3}], lr=0.1)'
    ),
}
STAYING = {
    "it is used in between": f"{SGD}\n    print(optimizer)",
    "it holds a list of parameters": (
        "params = [p for p in model.parameters()]\n    optimizer = torch.optim.SGD(params, lr=0.1)"
    ),
    "it holds others as well": (
        "optimizer = torch.optim.SGD([*model.parameters(), *more], lr=0.1)"
    ),
    "it is what a function is given": (
        "optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))"
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_an_optimizer_moves_below_the_sharding(name: str) -> None:
    source = HEAD + EARLY.replace("BUILT", MOVED[name])
    assert codes(source) == ["FSDP903"]
    sharding = "    fully_shard(model, mesh=mesh)\n"
    built = f"    {MOVED[name]}\n"
    assert mended(source) == source.replace(built + sharding, sharding + built)


@pytest.mark.parametrize("name", STAYING)
def test_one_of_which_more_is_to_be_known_stays(name: str) -> None:
    source = HEAD + EARLY.replace("BUILT", STAYING[name])
    assert codes(source) == ["FSDP903"]
    assert mended(source) == source


NORM = """\
def train(model, batches, rank, log):
    fully_shard(model)
    for batch in batches:
        model(batch).sum().backward()
        BODY
"""
SUM = "total = 0\n{0}for p in model.parameters():\n{0}    total += p.grad.to_local().norm() ** 2\n"
HERE = SUM.format("        ") + "        log(total)"
GATHERED = {
    "behind the backward": HERE,
    "where there is a gradient": HERE.replace(
        "            total", "            if p.grad is not None:\n                total"
    ),
    "in a list": (
        "norms = [p.grad.to_local().norm() for p in model.parameters() if p.requires_grad]\n"
        "        log(torch.stack(norms).norm())"
    ),
}
ALONE = {
    "one rank gets there": f"if rank == 0:\n            {SUM.format('            ')}",
    "the others went on": f"if rank:\n            continue\n        {HERE}",
    "nobody knows when": HERE.replace(
        "total = 0", "if batch.last:\n            log(0)\n            break\n        total = 0"
    ),
    "a condition in an expression": (
        "log(rank == 0 and sum(p.grad.to_local().norm() ** 2 for p in model.parameters()))"
    ),
    "a function that is handed on": (
        "log(lambda: sum(p.grad.to_local().norm() ** 2 for p in model.parameters()))"
    ),
}


@pytest.mark.parametrize("name", GATHERED)
def test_a_gradient_is_gathered_where_all_ranks_are(name: str) -> None:
    source = HEAD + NORM.replace("BODY", GATHERED[name])
    assert codes(source) == ["FSDP901"]
    assert mended(source) == source.replace("to_local()", "full_tensor()")


@pytest.mark.parametrize("name", ALONE)
def test_no_rank_waits_for_others_that_never_come(name: str) -> None:
    source = HEAD + NORM.replace("BODY", ALONE[name])
    assert codes(source) == ["FSDP901"]
    assert mended(source) == source


def test_a_function_is_asked_where_it_is_called() -> None:
    function = (
        "def norm(model):\n    total = 0\n    for p in model.parameters():\n"
        "        total += p.grad.to_local().norm() ** 2\n    return total\n\n\n"
    )
    every = HEAD + function + NORM.replace("BODY", "log(norm(model))")
    assert mended(every) == every.replace("to_local()", "full_tensor()")
    one = HEAD + function + NORM.replace("BODY", "if rank == 0:\n            log(norm(model))")
    assert codes(one) == ["FSDP901"]
    assert mended(one) == one
    offloaded = every.replace("fully_shard(model)", "fully_shard(model, offload_policy=log)")
    assert mended(offloaded) == offloaded, "gloo may not be there for what is on the CPU"


SHARD = """\
def shard(model, mesh, precision, state, folder, **options):
    fully_shard(model.head)
    BODY
"""
FORMS = {
    "fully_shard(model=model, device_mesh=mesh)": "fully_shard(module=model, mesh=mesh)",
    "fully_shard(model, MixedPrecisionPolicy())": (
        "fully_shard(model, mp_policy=MixedPrecisionPolicy())"
    ),
    "fully_shard(model, device_mesh=mesh, mp_policy=None)": "fully_shard(model, mesh=mesh)",
    'dcp.load(state, f"{folder}/last")': 'dcp.load(state, checkpoint_id=f"{folder}/last")',
    "fully_shard(model).set_requires_gradient_sync(False, False)": (
        "fully_shard(model).set_requires_gradient_sync(False, recurse=False)"
    ),
    "set_model_state_dict(model, state_dict=state)": (
        "set_model_state_dict(model, model_state_dict=state)"
    ),
}
NO_FORM = (
    "fully_shard(model, mixed_precision=precision)",
    "fully_shard(model, cpu_offload=True)",
    "fully_shard(model, mesh=mesh, device_mesh=mesh)",
    "fully_shard(model, use_orig_params=False)",
    "fully_shard(model, use_orig_params=options)",
    'fully_shard(model, device_mesh=mesh, sharding_strategy="FULL_SHARD")',
    "fully_shard(model, device_mesh=mesh, **options)",
    "set_model_state_dict(model, state, options=None, broadcast=True)",
    "set_model_state_dict(model)",
    "dcp.load(checkpoint_id=folder)",
)
FINE = (
    "fully_shard(model, mesh=mesh, **options)",
    "fully_shard(model, **options)",
    "dcp.load(state, dcp.FileSystemReader(folder))",
    "dcp.load(state, folder)",
    "dcp.load(state, checkpoint_id=folder)",
    "set_model_state_dict(model, state, **options)",
    "model.head.set_requires_gradient_sync(False, recurse=False)",
    "state.unshard(1, 2, 3)",
    "state.full_tensor(1)",
    "mesh.to_local(1, 2)",
)


@pytest.mark.parametrize("wrong", FORMS)
def test_the_form_that_is_meant_is_written(wrong: str) -> None:
    source = HEAD + SHARD.replace("BODY", wrong)
    assert codes(source)
    assert mended(source) == source.replace(wrong, FORMS[wrong])


@pytest.mark.parametrize("wrong", NO_FORM)
def test_what_may_mean_several_things_is_told_and_stays(wrong: str) -> None:
    source = HEAD + SHARD.replace("BODY", wrong)
    (hazard,) = hazards({"train.py": source})
    assert hazard.code in {"FSDP951", "FSDP952"}
    assert hazard.help
    assert mended(source) == source


@pytest.mark.parametrize("call", FINE)
def test_what_fits_is_fine(call: str) -> None:
    source = HEAD + SHARD.replace("BODY", call)
    assert codes(source) == []
    assert notes(source) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("fully_shard(model, sharding_strategy=1)", "reshard_after_forward=True is FULL_SHARD"),
        ("fully_shard(model, auto_wrap_policy=1)", "fully_shard of each layer first"),
        ("fully_shard(model, cpu_offload=1)", "offload_policy=CPUOffloadPolicy()"),
        ("fully_shard(model, mixed_precision=1)", "mp_policy=MixedPrecisionPolicy("),
        ("fully_shard(model, reshard_after_fwd=1)", "reshard_after_forward may be meant"),
        ("fully_shard(model, banana=1)", "it takes (module, *, mesh, "),
    ],
)
def test_the_nearest_form_is_named(wrong: str, said: str) -> None:
    (hazard,) = hazards({"train.py": HEAD + SHARD.replace("BODY", wrong)})
    assert said in hazard.help


LATER = HEAD + SHARD.replace("BODY", "fully_shard(model, dp_mesh_dims=mesh)")


def test_what_a_later_torch_takes_is_a_note_unless_a_target_is_asked_for() -> None:
    assert notes(LATER) == ["FSDP951"]
    assert codes(LATER) == []
    for target, found in (("2.6", ["FSDP951"]), ("2.11", ["FSDP951"]), ("2.12", [])):
        options = Options(hazards=True, target=Version(target))
        assert [h.code for h in hazards({"train.py": LATER}, options)] == found


def test_a_torch_without_fsdp2_is_none_of_its_business() -> None:
    wrong = HEAD + SHARD.replace("BODY", "fully_shard(model, device_mesh=mesh)")
    options = Options(hazards=True, target=Version("2.4"))
    assert hazards({"train.py": wrong}, options) == []


def test_a_branch_for_other_releases_is_left_out() -> None:
    body = "if torch.__version__ < '2.0':\n        fully_shard(model, device_mesh=mesh)"
    assert codes(HEAD + SHARD.replace("BODY", body)) == []


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed.fsdp import fully_shard as shard_it",
        "from torch.distributed._composable.fsdp import fully_shard as shard_it",
        "from torch.distributed.fsdp._fully_shard import fully_shard as shard_it",
    ],
)
def test_the_function_is_known_wherever_it_comes_from(imported: str) -> None:
    source = f"{imported}\n\n\ndef main(model, mesh):\n    shard_it(model, device_mesh=mesh)\n"
    assert codes(source) == ["FSDP951"]


@pytest.mark.parametrize(
    "imported",
    [
        "from torch.distributed._composable import fully_shard",
        "from colossal.distributed.fsdp import fully_shard",
        "from .sharding import fully_shard",
        "from functools import partial\n\nfully_shard = partial(print)",
    ],
)
def test_others_of_its_name_are_not_it(imported: str) -> None:
    used = "from torch.distributed.fsdp import fully_shard as torchs\n"
    source = (
        f"{used}{imported}\n\n\ndef main(model, mesh):\n    torchs(model)\n"
        "    fully_shard(model, device_mesh=mesh)\n"
    )
    assert codes(source) == []


def test_a_call_without_its_module_is_found_by_itself() -> None:
    source = (
        "from torch.distributed.fsdp import fully_shard\n\n\n"
        "def main(model):\n    fully_shard(model=model)\n"
    )
    assert codes(source) == ["FSDP951"]


POLICY = (
    HEAD
    + """\
def select(flag):
    return MixedPrecisionPolicy() if flag else None


def shard(model, flag):
    fully_shard(model.head)
    BODY
"""
)


@pytest.mark.parametrize(
    "given",
    [
        "fully_shard(model, mp_policy=select(flag))",
        "policy = select(flag)\n    fully_shard(model, mp_policy=policy)",
    ],
)
def test_a_policy_that_may_be_none_is_a_note(given: str) -> None:
    source = POLICY.replace("BODY", given)
    assert (codes(source), notes(source)) == ([], ["FSDP953"])


@pytest.mark.parametrize(
    "given",
    [
        "fully_shard(model, mp_policy=select(flag) or MixedPrecisionPolicy())",
        "policy = select(flag) or MixedPrecisionPolicy()\n    fully_shard(model, mp_policy=policy)",
        "policy = select(flag)\n    if policy is not None:\n"
        "        fully_shard(model, mp_policy=policy)",
        "policy = select(flag)\n    if not policy:\n        policy = MixedPrecisionPolicy()\n"
        "    fully_shard(model, mp_policy=policy)",
        "fully_shard(model, mp_policy=flag)",
    ],
)
def test_a_policy_with_a_default_or_a_question_is_not(given: str) -> None:
    source = POLICY.replace("BODY", given)
    assert (codes(source), notes(source)) == ([], [])
