"""What the support functions do on two ranks, and what the obvious code does in their place.

Every check runs on all ranks. Where the obvious code fails without an error, the check shows it:
these are the reasons why the functions exist, and they should go when torch no longer needs them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullOptimStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate.runtime import fsdp2_support as support

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check, which runs in a process group of its own."""

    def run() -> None:
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        function()
        dist.destroy_process_group()

    run.__doc__ = function.__doc__
    CHECKS[function.__name__] = run
    return run


def run(name: str) -> None:
    CHECKS[name]()


class Net(nn.Module):
    """Parameters of the root before and after a unit, none of them even on two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Linear(3, 5)
        self.block = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(self.block(self.input(x))))
        return result


def sharded(model: Any = None, **kwargs: Any) -> Any:
    model = Net() if model is None else model
    if isinstance(model, Net):
        fully_shard(model.block, **kwargs)
    return fully_shard(model, **kwargs)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> list[float]:
    losses: list[float] = []
    for _ in range(steps):
        loss = model(batch(len(losses))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def batch(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    return torch.randn(4, 3, generator=generator)


def evaluate(model: nn.Module) -> None:
    """What leaves the root's parameters unsharded: a forward that no backward follows."""
    with torch.no_grad():
        model(batch(99))


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all parameters, gathered."""
    support.reshard_parameters(model)
    return {n: _whole(p.detach()) for n, p in model.named_parameters()}


def whole_state(model: nn.Module) -> dict[str, Any]:
    """What FSDP1's state was: whole tensors under plain names, on every rank."""
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def load_whole(model: nn.Module, state: dict[str, Any], **options: Any) -> Any:
    """Load a whole state of the model, as migrated programs do."""
    support.reshard_parameters(model)
    flags = StateDictOptions(full_state_dict=True, **options)
    return set_model_state_dict(model, dict(state), options=flags)


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A copy of the whole state of an optimizer."""
    support.reshard_parameters(model)
    state: dict[str, Any] = support.whole_on_cpu(get_optimizer_state_dict(model, optimizer))
    return state


def load_optimizer(model: nn.Module, optimizer: Any, state: dict[str, Any], **options: Any) -> None:
    """Load a whole state of an optimizer, as migrated programs do."""
    support.reshard_parameters(model)
    flags = StateDictOptions(full_state_dict=True, **options)
    set_optimizer_state_dict(model, optimizer, support.separate_steps(state or {}), options=flags)


def _whole(tensor: Any) -> torch.Tensor:
    plain: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return plain.clone()


def on_all_ranks(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def raised(call: Callable[[], object]) -> str:
    """The type of the exception that a call ends with, or nothing."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


# -- parameters -----------------------------------------------------------------------------------


@check
def a_plain_state_stops_at_a_sharded_parameter() -> None:
    """Also where a forward left parameters gathered, and where names may be missing."""
    for options in ({}, {"reshard_after_forward": False}):
        for model in (sharded(**options), fully_shard(Net(), **options)):
            plain = {n: torch.zeros(p.shape) for n, p in model.named_parameters()}
            before = whole(model)
            for strict in (True, False):
                evaluate(model)
                assert raised(partial(model.load_state_dict, plain, strict)) == "RuntimeError"
            after = whole(model)
            assert all(torch.equal(after[n], before[n]) for n in before)


@check
def the_parameters_of_every_unit_are_all_of_a_model_once() -> None:
    model = sharded()
    evaluate(model)
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    listed = [p for unit in units for p in support.unit_parameters(unit)]
    assert len(units) > 1
    assert all(isinstance(p, DTensor) for p in listed)
    assert {id(p) for p in listed} == {id(p) for p in model.parameters()}
    assert len(listed) == len(list(model.parameters()))


@check
def an_optimizer_built_after_an_evaluation_trains_everything() -> None:
    for function in (support.reshard_parameters, lambda model: None):
        model = sharded()
        evaluate(model)
        function(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = whole(model)
        train(model, optimizer)
        changed = {n.split(".")[0] for n, p in whole(model).items() if not p.equal(before[n])}
        everything = {"input", "block", "norm", "head"}
        # Without: the root's parameters are silently left out.
        assert changed == (everything if function is support.reshard_parameters else {"block"})


@check
def whole_parameters_can_be_read_in_full_precision() -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    model: Any = fully_shard(copy.deepcopy(plain), mp_policy=half)
    expected = dict(plain.named_parameters())
    evaluate(model)
    with support.full_params(model, writeback=False):
        for name, parameter in model.named_parameters():
            assert not isinstance(parameter, DTensor)
            assert parameter.equal(expected[name]), name
    # unshard() gives the parameters in the dtype of the computation.
    model.unshard()
    rounded = dict(model.named_parameters())
    assert {p.dtype for p in rounded.values()} == {torch.bfloat16}
    model.reshard()
    # FSDP1's own context does nothing on an FSDP2 model.
    with FSDP.summon_full_params(model):
        assert all(isinstance(p, DTensor) for p in model.parameters())


@check
def changes_to_whole_parameters_stay() -> None:
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    evaluate(model)
    support.reshard_parameters(model)
    same = list(map(id, model.parameters()))
    with torch.no_grad(), support.full_params(model):
        model.head.weight[0, 1] = 0.25
        model.block[0].weight.data = torch.full((7, 5), 0.5)
        model.input.bias.fill_(dist.get_rank() + 1)  # every rank keeps its own slice
    state = whole(model)
    assert state["head.weight"][0, 1] == 0.25
    assert state["block.0.weight"].equal(torch.full((7, 5), 0.5))
    assert model.input.bias.to_local().eq(dist.get_rank() + 1).all()
    assert list(map(id, model.parameters())) == same
    before = whole(model)
    train(model, optimizer)
    assert all(not p.equal(before[n]) for n, p in whole(model).items())
    # Assigning to the data of a sharded parameter does nothing; gathered by unshard(), it is lost.
    model.head.weight.data = torch.zeros_like(model.head.weight)
    assert whole(model)["head.weight"].any()
    model.unshard()
    with torch.no_grad():
        model.head.weight.zero_()
    model.reshard()
    assert whole(model)["head.weight"].any()


@check
def a_state_within_whole_parameters_is_what_they_are() -> None:
    """FSDP1's too: all of it, or off rank 0 what the rank holds."""
    for rank0_only in (False, True):
        model = sharded()
        expected = whole(model)
        with support.full_params(model, writeback=False, rank0_only=rank0_only):
            state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        if dist.get_rank() == 0 or not rank0_only:
            assert all(state[name].equal(value) for name, value in expected.items())
        else:
            assert state["block.0.weight"].shape == (3, 5)


@check
def nothing_stays_of_changes_without_writeback() -> None:
    model = sharded()
    before = whole(model)
    with torch.no_grad(), support.full_params(model, writeback=False):
        for parameter in model.parameters():
            parameter.zero_()
    assert all(p.equal(before[n]) for n, p in whole(model).items())


@check
def whole_parameters_come_with_gradients_on_one_rank_or_on_the_cpu() -> None:
    model = sharded()
    model(batch(0)).square().mean().backward()
    before = gradients(model)
    with support.full_params(model, with_grads=True):
        for name, parameter in model.named_parameters():
            assert parameter.grad.equal(before[name])
            parameter.grad.mul_(2)
    assert all(gradient.equal(2 * before[n]) for n, gradient in gradients(model).items())
    for flags in ({"rank0_only": True}, {"rank0_only": True, "offload_to_cpu": True}):
        with support.full_params(model, writeback=False, **flags):
            rows = model.head.weight.shape[0], model.block[0].weight.shape[0]
        assert on_all_ranks(rows) == [(1, 7), (0, 3)]
    refused = raised(lambda: support.full_params(model, rank0_only=True).__enter__())
    assert refused == "NotImplementedError"


@check
def one_units_parameters_can_be_whole_alone() -> None:
    model = sharded()
    before = whole(model)
    with support.full_params(model, recurse=False):
        assert torch.equal(model.input.weight, before["input.weight"])
        assert isinstance(model.block[0].weight, DTensor)
        with torch.no_grad():
            model.input.weight.mul_(2)
    after = whole(model)
    assert torch.equal(after["input.weight"], 2 * before["input.weight"])
    assert torch.equal(after["block.0.weight"], before["block.0.weight"])


@check
def the_model_runs_on_gathered_parameters() -> None:
    plain = Net().eval()
    wanted = [plain(batch(0)), plain(batch(1))]
    for recurse in (True, False):
        model = sharded(copy.deepcopy(plain)).eval()
        with torch.no_grad(), support.unsharded(model, recurse=recurse):
            assert not isinstance(model.head.weight, DTensor)
            for seed, value in enumerate(wanted):
                torch.testing.assert_close(model(batch(seed)), value)
        assert isinstance(model.head.weight, DTensor)
        losses = train(model.train(), torch.optim.SGD(model.parameters(), 0.1), 2)
        assert losses[0] != losses[1]


@check
def tied_parameters_stay_tied_in_the_block() -> None:
    model: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    fully_shard(model)
    with torch.no_grad(), support.full_params(model):
        assert model[0].weight is model[1].weight
        model[0].weight.add_(1)
        expected = model[1].weight.clone()
    assert model[0].weight is model[1].weight
    assert whole(model)["0.weight"].equal(expected)


# -- accumulation and clipping --------------------------------------------------------------------


@check
def gradients_add_up_without_being_reduced() -> None:
    reference, model, compiled = Net(), sharded(), sharded()
    for each in (model, compiled):
        load_whole(each, reference.state_dict())
    wrapped: list[Any] = [
        DistributedDataParallel(reference),
        model,
        torch.compile(compiled, backend="eager"),
    ]
    found: list[list[torch.Tensor]] = []
    for each in wrapped:
        for seed in range(2):
            with support.no_sync_of_any(each):
                each(batch(seed)).square().mean().backward()
        each(batch(2)).square().mean().backward()
        found.append([_whole(p.grad) for p in each.parameters() if p.grad is not None])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-7)
    with contextlib.suppress(KeyError), support.no_sync_of_any(model):
        raise KeyError
    assert model._get_fsdp_state()._fsdp_param_group.reduce_grads


@check
def parameters_stay_gathered_between_micro_batches_when_asked() -> None:
    contexts: list[tuple[bool, Callable[[Any], AbstractContextManager[None]]]] = [
        (True, support.no_sync_unsharded),
        (False, support.no_sync),
        (True, support.no_sync_of_any_unsharded),
        (False, support.no_sync_of_any),
    ]
    for keep, context in contexts:
        model = sharded(reshard_after_forward=False)
        with context(model):
            model(batch(0)).square().mean().backward()
        kinds = {isinstance(p, DTensor) for p in model.parameters()}
        assert kinds == ({False} if keep else {True})
        model(batch(1)).square().mean().backward()
        assert all(isinstance(p, DTensor) for p in model.parameters())


@check
def the_norm_is_of_all_gradients_and_equal_on_all_ranks() -> None:
    for norm_type in (1.0, 2.0, float("inf")):
        model = sharded()
        model(batch(0)).square().mean().backward()
        expected = gradients(model)
        parts = torch.stack([torch.linalg.vector_norm(g, norm_type) for g in expected.values()])
        total = torch.linalg.vector_norm(parts, norm_type)
        if norm_type == float("inf"):  # torch: silently this rank's own, or an error
            rows = [p.grad for p in model.parameters() if len(p) > 1]
            own = torch.nn.utils.get_total_norm(rows, norm_type).item()
            assert len(set(on_all_ranks(own))) == 2
            every = [p.grad for p in model.parameters()]
            error = raised(lambda g=every: torch.nn.utils.get_total_norm(g, float("inf")))  # type: ignore[misc]
            assert on_all_ranks(error) == ["", "RuntimeError"]
        norm = support.clip_any_grad_norm_(model, 0.01, norm_type)
        assert type(norm) is torch.Tensor
        torch.testing.assert_close(norm, total)
        scale = 0.01 / (total + 1e-6)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(_whole(parameter.grad), expected[name] * scale)


@check
def parameters_that_are_not_sharded_are_clipped_along() -> None:
    """Each rank counts its own gradients of them, as in FSDP1."""
    for norm_type in (1.0, float("inf")):
        model = Net()
        fully_shard(model, ignored_params=set(model.head.parameters()))
        assert support.clip_grad_norm_(model, 1.0) == 0  # no gradients yet
        model(batch(0)).square().mean().backward()
        norms = [torch.linalg.vector_norm(g, norm_type) for g in gradients(model).values()]
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        assert len(set(on_all_ranks(total.item()))) == 2
        if norm_type == float("inf"):
            total = torch.tensor(max(on_all_ranks(total.item())))
        naive = raised(lambda m=model: torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0))  # type: ignore[misc]
        assert naive == "RuntimeError"
        before = [_own(p.grad).clone() for p in model.parameters()]
        torch.testing.assert_close(support.clip_any_grad_norm_(model, 0.01, norm_type), total)
        after = [_own(p.grad) for p in model.parameters()]
        torch.testing.assert_close(after, [g * 0.01 / (total + 1e-6) for g in before])


@check
def ranks_that_agree_skip_a_step_together() -> None:
    last = dist.get_rank() == dist.get_world_size() - 1
    group = dist.new_group()
    made: list[Any] = [
        torch.amp.GradScaler,
        support.AgreeingGradScaler,
        partial(support.AgreeingGradScaler, process_group=group),
    ]
    for each in made:
        model = nn.Linear(2, 2)  # of this rank alone
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.weight.detach().clone()
        scaler = each("cpu", init_scale=8.0)
        loss = model(torch.ones(1, 2)).sum() * (float("inf") if last else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped = on_all_ranks(torch.equal(model.weight, before))
        scales = on_all_ranks(scaler.get_scale())
        if each is torch.amp.GradScaler and dist.get_world_size() > 1:
            assert skipped == [False, True]
            assert scales == [8.0, 4.0]
        else:
            assert all(skipped)
            assert set(scales) == {4.0}
    off = support.AgreeingGradScaler("cpu", enabled=False)
    assert off.scale(torch.ones(())) == 1


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: _whole(p.grad) for n, p in model.named_parameters()}


def _own(tensor: Any) -> torch.Tensor:
    """What this rank holds of a tensor."""
    own: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own


# -- model states ---------------------------------------------------------------------------------


@check
def a_state_is_whole_where_no_kind_is_set() -> None:
    """By itself, and after a context, an FSDP2 model gives its shards."""
    model = sharded()
    plain = whole_state(model)
    assert isinstance(model.state_dict()["head.weight"], DTensor)  # the naive form
    with support.state_dict_type(model, support.StateDictType.SHARDED_STATE_DICT):
        assert isinstance(support.model_state_dict(model)["head.weight"], DTensor)
    assert isinstance(model.state_dict()["head.weight"], DTensor)
    found = support.model_state_dict(model)
    assert all(found[name].equal(value) for name, value in plain.items())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    keys = support.load_model_state_dict(model, {"odd": torch.ones(1), **plain}, strict=False)
    assert keys.unexpected_keys == ["odd"]
    found = support.model_state_dict(model)
    assert all(found[name].equal(value) for name, value in plain.items())
    support.set_state_dict_type(model.block, support.StateDictType.SHARDED_STATE_DICT)
    assert isinstance(support.model_state_dict(model)["block.0.weight"], DTensor)
    assert found["head.weight"].equal(support.model_state_dict(model)["head.weight"])


@check
def a_whole_state_is_a_copy_under_plain_names() -> None:
    model = sharded(torch.compile(Net(), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluate(model)
    state = copy.deepcopy(whole_state(model))
    kept = {name: value.clone() for name, value in state.items()}
    live = get_model_state_dict(model)
    assert list(state) == list(Net().state_dict())
    train(model, optimizer)
    assert all(state[name].equal(value) for name, value in kept.items())
    # A sharded state is no copy: it follows the training.
    assert not any(_whole(live[n]).equal(kept[n]) for n in kept if "weight" in n)
    only = support.full_model_state(model, cpu_offload=True)
    assert on_all_ranks(len(only)) == [len(kept), *([0] * (dist.get_world_size() - 1))]
    Net().load_state_dict(only or state)


@check
def one_rank_alone_may_ask_a_replicated_model_for_its_state() -> None:
    """As under NO_SHARD in FSDP1; of a sharded model it waits for the others, as it did there."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard")
    )
    model = fully_shard(nn.Linear(2, 2), mesh=mesh)
    model(torch.ones(1, 2)).sum().backward()
    if dist.get_rank() == 0:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        assert {type(tensor) for tensor in state.values()} == {torch.Tensor}
    dist.barrier()


@check
def a_file_of_a_plain_state_dict_has_one_shard() -> None:
    """Rank 0 alone, in the manner of DDP programs: silently 4 of 7 rows."""
    model = sharded()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)["block.0.weight"]
    assert on_all_ranks(tuple(loaded.to_local().shape)) == [(4, 5), (3, 5)]
    state = support.full_model_state(model, cpu_offload=True)
    assert on_all_ranks(len(state)) == [len(Net().state_dict()), 0]


@check
def whoever_asks_gets_a_whole_state_and_gives_one() -> None:
    model = sharded()
    with support.whole_states(model):
        state = model.state_dict()
    for value in state.values():  # safetensors refuses a part of what was gathered
        assert not isinstance(value, DTensor)
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with support.whole_states(model, rank0_only=True):
        assert bool(model.state_dict()) == (dist.get_rank() == 0)
    with support.whole_states(model):
        assert not model.load_state_dict(state).missing_keys
        assert all(model.state_dict()[name].equal(value) for name, value in state.items())
    assert any(isinstance(value, DTensor) for value in model.state_dict().values())


@check
def a_model_that_is_not_sharded_is_asked_and_loaded_alike() -> None:
    """For torch's functions DDP's names are plain; a file with its prefix does not load."""
    for wrap in (nn.parallel.DistributedDataParallel, lambda net: net):
        model = wrap(Net())
        assert list(whole_state(model)) == list(Net().state_dict())
        given = {name: value + 1 for name, value in whole_state(model).items()}
        load_whole(model, given)
        assert all(value.equal(given[name]) for name, value in whole_state(model).items())
    model = nn.parallel.DistributedDataParallel(Net())
    assert raised(lambda: load_whole(model, model.state_dict())) == "RuntimeError"


@check
def a_whole_state_loads_from_all_ranks_or_from_one() -> None:
    source = Net().state_dict()
    for load, options in (
        (load_whole, {}),
        (load_whole, {"broadcast_from_rank0": True}),
        (support.load_full_model, {}),
    ):
        model = sharded()
        evaluate(model)
        given = {**source, "input.weight": source["input.weight"].bfloat16().float()}
        result = load(model, given if dist.get_rank() == 0 or not options else {}, **options)
        assert (list(result.missing_keys), list(result.unexpected_keys)) == ([], [])
        state = whole_state(model)
        assert all(state[name].equal(value) for name, value in given.items())
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))


@check
def a_dictionary_that_is_loaded_is_filled_with_shards() -> None:
    source = Net().state_dict()
    options = StateDictOptions(full_state_dict=True)
    support.load_full_model(sharded(), source)
    assert not any(isinstance(value, DTensor) for value in source.values())
    set_model_state_dict(sharded(), source, options=options)
    assert any(isinstance(value, DTensor) for value in source.values())


@check
def missing_keys_are_an_error_with_a_broadcast_alone() -> None:
    source = Net().state_dict()
    missing = {n: v for n, v in source.items() if n != "block.0.weight"}
    unexpected = {**source, "stranger": torch.zeros(1)}
    for state in (missing, unexpected):
        error = raised(lambda s=state: support.load_full_model(sharded(), s))  # type: ignore[misc]
        assert on_all_ranks(error) == ["RuntimeError"] * 2
        result = support.load_full_model(sharded(), state, strict=False)
        found = result.missing_keys, result.unexpected_keys
        assert found == ((["block.0.weight"], []) if state is missing else ([], ["stranger"]))
    assert not raised(lambda: load_whole(sharded(), missing))
    assert raised(lambda: load_whole(sharded(), unexpected)) == "RuntimeError"
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    for state in (missing, unexpected):
        error = raised(lambda s=dict(state): set_model_state_dict(sharded(), s, options=options))  # type: ignore[misc]
        assert on_all_ranks(error) == ["RuntimeError"] * 2


# -- optimizer states -----------------------------------------------------------------------------


@check
def an_optimizer_that_has_not_stepped_stays_so() -> None:
    results: list[list[float]] = []
    ask: Callable[..., Any]
    safe = (_optim_state_dict,)
    for ask in (get_optimizer_state_dict, lambda *_: None, *safe):
        torch.manual_seed(0)
        model = sharded()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        state: Any = ask(model, optimizer)
        if ask in safe:
            assert state["state"] == {}
            assert state["param_groups"][0]["params"] == [n for n, _ in model.named_parameters()]
            assert state["param_groups"][0]["lr"] == 0.1
        results.append(train(model, optimizer, 3))
        if ask in safe:
            stepped: Any = ask(model, optimizer)
            assert len(stepped["state"]) == len(whole(model))
    assert results[0] != results[1]  # torch takes a step to have a state
    assert all(result == results[1] for result in results[2:])


@check
def a_state_that_is_empty_is_by_name_as_in_fsdp1() -> None:
    """Before the first step, and of an optimizer that never has one."""
    old = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    new = sharded()
    for rank0_only in (False, True):
        wanted = FullOptimStateDictConfig(rank0_only=rank0_only)
        FSDP.set_state_dict_type(old, StateDictType.FULL_STATE_DICT, optim_state_dict_config=wanted)
        config = support.FullOptimStateDictConfig(rank0_only=rank0_only)
        kind = support.StateDictType.FULL_STATE_DICT
        support.set_state_dict_type(new, kind, optim_state_dict_config=config)
        for kept in (True, False):  # of SGD, nothing is kept
            made = torch.optim.AdamW if kept else torch.optim.SGD
            before, after = (made(model.parameters(), lr=0.1) for model in (old, new))
            for model, optimizer in () if kept else ((old, before), (new, after)):
                train(model, optimizer)
            expected = FSDP.optim_state_dict(old, before)
            state = support.optim_state_dict(new, after)
            assert state == expected, (state, expected)
            after.load_state_dict(support.optim_state_dict_to_load(new, after, state or None))


def _optim_state_dict(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    kind = support.StateDictType.SHARDED_STATE_DICT
    with support.state_dict_type(model, kind):
        return support.optim_state_dict(model, optimizer)


@check
def a_whole_optimizer_state_is_a_copy_and_loads_back() -> None:
    for make in (
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ):
        model = sharded()
        model.input.requires_grad_(False)
        optimizer = make(list(model.parameters()))
        train(model, optimizer, 2)
        evaluate(model)
        weights = whole_state(model)
        state = optimizer_state(model, optimizer)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        only = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
        assert on_all_ranks(len(only)) == [2, 0]
        expected = train(model, optimizer, 3)
        for from_rank0 in (False, True):
            load_whole(model, weights)
            other = make(list(model.parameters()))
            for group in other.param_groups:
                group["lr"] = 7.0  # comes with the state
            load_optimizer(
                model, other, only if from_rank0 else state, broadcast_from_rank0=from_rank0
            )
            assert train(model, other, 3) == expected


@check
def steps_that_parameters_share_count_once() -> None:
    """FSDP1 saved one step counter for all parameters of a unit, as one tensor."""
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    state = optimizer_state(model, optimizer)
    step = torch.tensor(2.0)
    for fields in state["state"].values():
        fields["step"] = step
    steps = []
    for load in (load_optimizer, _set_optimizer_state):
        other = torch.optim.AdamW(model.parameters(), lr=0.1)
        load(model, other, copy.deepcopy(state))
        train(model, other)
        steps.append({fields["step"].item() for fields in other.state.values()})
    assert steps[0] == {3.0}
    assert steps[1] != {3.0}


def _set_optimizer_state(model: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, state, options=options)


@check
def groups_are_told_by_their_parameters() -> None:
    """The order of the groups, and of the parameters in them, may be another than when saved."""
    model = sharded()
    names = dict(model.named_parameters())
    biases = [p for n, p in names.items() if n.endswith("bias")]
    weights = [p for n, p in names.items() if n.endswith("weight")]
    optimizer = torch.optim.AdamW([{"params": biases, "lr": 0.01}, {"params": weights, "lr": 0.02}])
    train(model, optimizer, 2)
    state = optimizer_state(model, optimizer)
    state["state"]["gone"] = {"step": torch.tensor(2.0)}
    kept = whole_state(model)
    expected = train(model, optimizer, 3)
    load_whole(model, kept)
    other = torch.optim.AdamW([{"params": weights[::-1]}, {"params": biases[::-1]}])
    load_optimizer(model, other, state)
    assert [group["lr"] for group in other.param_groups] == [0.02, 0.01]
    assert train(model, other, 3) == expected


# -- sharding -------------------------------------------------------------------------------------


@check
def states_are_of_the_kind_that_is_set() -> None:
    """The same calls give a whole state, on rank 0 only or on all, and a sharded one."""
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    plain = whole_state(model)
    kind = support.StateDictType

    with support.state_dict_type(
        model,
        kind.FULL_STATE_DICT,
        support.FullStateDictConfig(rank0_only=True),
        support.FullOptimStateDictConfig(rank0_only=True),
    ):
        saved = model.state_dict()
        assert all(torch.equal(value, plain[name]) for name, value in saved.items())
        assert bool(model.block.state_dict()) == (dist.get_rank() == 0)
        saved_optim = support.optim_state_dict(model, optimizer)
        assert bool(saved) == bool(saved_optim) == (dist.get_rank() == 0)
        again = support.optim_state_dict_to_load(model, optimizer, saved_optim or None)
        assert (
            again["state"].keys()
            == support.optimizer_state_to_load(model, optimizer, saved_optim, from_rank0=True)[
                "state"
            ].keys()
        )
        optimizer.load_state_dict(again)
    with support.state_dict_type(model, kind.SHARDED_STATE_DICT):
        inner = model.state_dict()
        assert isinstance(inner["head.weight"], DTensor)
        assert isinstance(model.block.state_dict()["0.weight"], DTensor)
        optim = copy.deepcopy(support.optim_state_dict(model, optimizer))
        assert isinstance(optim["state"]["head.weight"]["exp_avg"], DTensor)
        train(model, optimizer)
        model.load_state_dict({k: v.clone() for k, v in inner.items()})
        optimizer.load_state_dict(support.optim_state_dict_to_load(model, optimizer, optim))
    assert support.get_state_dict_type(model).state_dict_type is kind.FULL_STATE_DICT
    before = support.set_state_dict_type(model, kind.SHARDED_STATE_DICT)
    assert before == support.StateDictSettings()
    support.set_state_dict_type(model, kind.LOCAL_STATE_DICT)
    assert isinstance(model.state_dict()["head.weight"], DTensor)
    support.set_state_dict_type(model, kind.FULL_STATE_DICT)
    evaluate(model)
    model.load_state_dict(plain)
    evaluate(model)
    state = model.state_dict()
    assert all(torch.equal(state[name], plain[name]) for name, _ in model.named_parameters())
    assert "missing" in str(model.load_state_dict({}, strict=False))
    steps = {s["step"].item() for s in optimizer.state.values()}
    assert steps == {2.0}


@check
def a_sharded_optimizer_state_is_read_with_dcp() -> None:
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    dcp.save({"optim": state}, checkpoint_id=box[0])
    train(model, optimizer)
    read = {"optim": get_optimizer_state_dict(model, optimizer)}
    dcp.load(read, storage_reader=dcp.FileSystemReader(box[0]))
    set_optimizer_state_dict(model, optimizer, read["optim"])
    for parameter, values in optimizer.state.items():
        assert values["step"] == 2
        name = next(n for n, p in model.named_parameters() if p is parameter)
        saved = state["state"][name]["exp_avg"]
        assert torch.equal(values["exp_avg"].to_local(), saved.to_local())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.randn(3), persistent=False)
        self.register_buffer("part", torch.ones(2))
        self.register_buffer("count", torch.tensor(dist.get_rank()))


@check
def what_rank_0_holds_reaches_all_ranks() -> None:
    torch.manual_seed(dist.get_rank())
    expected = on_all_ranks(_everything(Tied()))[0]
    for kind in ("real", "meta"):
        torch.manual_seed(dist.get_rank())
        if kind == "real" or dist.get_rank() == 0:
            model = Tied()
        else:
            with torch.device("meta"):
                model = Tied()
        state = support.take_rank0_state(model)
        assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
        fully_shard(model)
        support.load_rank0_state(model, state, "cpu")
        assert model.head.weight is model.embed.weight
        found = _everything(model)
        assert found.keys() == expected.keys()
        assert all(found[name].equal(expected[name]) for name in expected), kind


@check
def what_the_first_rank_holds_reaches_the_others() -> None:
    torch.manual_seed(dist.get_rank())
    expected = on_all_ranks(_everything(Tied()))[0]
    for kind in ("real", "meta"):
        torch.manual_seed(dist.get_rank())
        with torch.device("cpu" if kind == "real" or dist.get_rank() == 0 else "meta"):
            model = Tied()
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        fully_shard(model)
        support.give_weights(model, weights)
        assert not weights
        assert model.head.weight is model.embed.weight
        found = _everything(model)
        assert all(found[name].equal(expected[name]) for name in expected), kind


@check
def broadcasting_the_state_dict_alone_leaves_buffers_out() -> None:
    torch.manual_seed(dist.get_rank())
    model = Tied()
    state = model.state_dict() if dist.get_rank() == 0 else {}
    state = {name: value.clone() for name, value in state.items()}
    fully_shard(model)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)
    tables = on_all_ranks(model.table)
    assert not tables[0].equal(tables[1])


def _everything(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **{n: _whole(p.detach()) for n, p in model.named_parameters()},
        **dict(model.named_buffers()),
    }


@check
def strategies_become_arguments() -> None:
    strategy = support.ShardingStrategy
    assert support.sharding_kwargs(None) == {}
    assert support.sharding_kwargs("FULL_SHARD") == {}
    assert support.sharding_kwargs(strategy.SHARD_GRAD_OP) == {"reshard_after_forward": False}
    for name in ("NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
        kwargs = support.sharding_kwargs(name, "cpu")
        assert kwargs["mesh"].mesh_dim_names == ("replicate", "shard")
        assert ("reshard_after_forward" in kwargs) == name.endswith("ZERO2")
        assert isinstance(fully_shard(Net(), **kwargs), FSDPModule)
    assert support.sharding_kwargs("FULL_SHARD", "cpu")["mesh"].shape == (2,)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
    assert support.sharding_kwargs("HYBRID_SHARD", mesh=mesh) == {"mesh": mesh}
    assert raised(lambda: support.sharding_kwargs("ZERO_9")) == "ValueError"
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    for name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):  # as FSDP1 refused it
        assert raised(partial(support.sharding_kwargs, name, "cpu", line)) == "ValueError"
        fsdp1 = partial(FSDP, Net(), sharding_strategy=ShardingStrategy[name])
        assert (
            raised(partial(fsdp1, device_mesh=line, device_id=torch.device("cpu"))) == "ValueError"
        )
    names = [each.name for each in strategy]
    assert names == [
        "FULL_SHARD",
        "SHARD_GRAD_OP",
        "NO_SHARD",
        "HYBRID_SHARD",
        "_HYBRID_SHARD_ZERO2",
    ]


@check
def groups_become_meshes_over_the_same_ranks() -> None:
    everyone = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    assert support.mesh_of_groups(None, "cpu") is None
    line = support.mesh_of_groups(everyone, "cpu")
    assert line.mesh.tolist() == [0, 1]
    for sharding, replicating, ranks in (
        (everyone, alone, [[0, 1]]),
        (alone, everyone, [[0], [1]]),
    ):
        for mesh in (
            support.mesh_of_groups((sharding, replicating), "cpu"),
            support.mesh_of_pair(sharding, replicating, "cpu"),
        ):
            assert mesh.mesh_dim_names == ("replicate", "shard")
            assert mesh.mesh.tolist() == ranks
            assert isinstance(fully_shard(Net(), mesh=mesh), FSDPModule)


@check
def an_optimizers_own_state_is_taken_and_that_of_fsdp1_refused() -> None:
    model = fully_shard(Net())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    own = optimizer.state_dict()
    assert support.own_optimizer_state(optimizer, own) is own
    flat = optimizer.state_dict()
    flat["state"] = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(41)}}
    flat["param_groups"][0]["params"] = [0]  # as with use_orig_params=False
    assert raised(lambda: support.own_optimizer_state(optimizer, flat)) == "ValueError"
    of_others = torch.optim.Adam(nn.Linear(4, 4).parameters())
    assert support.own_optimizer_state(of_others, flat) is flat


@check
def a_policy_is_asked_as_fsdp1_asked_it() -> None:
    asked: list[tuple[str, bool, int]] = []
    model = Net()
    names = {module: name for name, module in model.named_modules()}

    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        asked.append((names[module], recurse, nonwrapped_numel))
        return recurse or module is model.block or module is model.norm

    support.shard_by_policy(model, policy, ignored_params=set(model.norm.parameters()))
    assert [name for name, m in model.named_modules() if isinstance(m, FSDPModule)] == ["block"]
    assert ("block", False, 82) in asked
    assert not any(name == "norm" for name, _, _ in asked)


@check
def units_of_a_size_are_those_of_fsdp1() -> None:
    def all_of(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    attention = nn.MultiheadAttention(8, 2)  # 288 parameters
    lists = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])  # 144
    holder = nn.Module()  # without a forward
    holder.inner = nn.Linear(10, 10)  # 110
    inside = nn.Sequential(nn.Linear(10, 10), nn.Linear(4, 4))  # 110 and 20
    model = nn.Sequential(attention, lists, holder, inside)
    large = [holder.inner, inside[0]]
    assert support.units_by_size(model, 100) == large
    assert support.units_by_size(model, 20) == [*lists, *large, inside[1]]
    assert support.units_by_size(model, all_of(model)) == []
    assert support.units_by_size(inside, 130) == []
    assert support.units_by_size(nn.Sequential(nn.Sequential(inside), inside), 111) == [inside]
    assert support.units_by_size(nn.Sequential(inside), 111) == [inside]
    assert all(all_of(unit) for unit in support.units_by_size(nn.Sequential(nn.ReLU(), inside), 0))


# -- methods other than forward -------------------------------------------------------------------


class Methods(Net):
    """``full`` computes with the root's parameters, ``encode`` with a unit's alone."""

    def full(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(self.encode(self.input(x))))
        return result

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.block(x)
        return result

    def score(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(x))
        return result

    def again(self, x: torch.Tensor) -> torch.Tensor:
        return self.full(x) + self.forward(x) + self(x)


def _methods(*registered: str, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    model = sharded(Methods(), **kwargs)
    for name in registered:
        register_fsdp_forward_method(model, name)
    return model


def _gradients(model: nn.Module, *names: str) -> dict[str, torch.Tensor]:
    """The gradients of one pass through each of some methods, averaged over the ranks."""
    total = torch.zeros(())
    for name in names:
        generator = torch.Generator().manual_seed(dist.get_rank())
        width = 5 if name in {"encode", "score"} else 3
        method = model if name == "forward" else getattr(model, name)
        total = total + method(torch.randn(4, width, generator=generator)).square().mean()
    total.backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor):
            found[name] = gradient.full_tensor()
        elif gradient is not None:
            dist.all_reduce(gradient)
            found[name] = gradient / dist.get_world_size()
    return found


def _same_gradients(*names: str, registered: tuple[str, ...], **kwargs: Any) -> None:
    torch.manual_seed(0)
    expected = _gradients(Methods(), *names)
    found = _gradients(_methods(*registered, **kwargs), *names)
    assert expected.keys() == found.keys()
    assert all(torch.allclose(expected[n], found[n], atol=1e-6) for n in expected)


def _fails(message: str, call: Callable[..., Any], *args: Any) -> None:
    seen = ""
    try:
        call(*args)
    except RuntimeError as error:
        seen = str(error)
    assert message in seen


@check
def a_registered_method_has_the_gradients_of_the_whole_model() -> None:
    _same_gradients("full", registered=("full",))
    _same_gradients("encode", registered=("encode",))
    _same_gradients("score", registered=("score",))
    _same_gradients("again", registered=("again",))
    _same_gradients("full", "encode", "forward", registered=("full", "encode"))
    _same_gradients("full", "encode", registered=("full", "encode"), reshard_after_forward=False)


@check
def a_method_without_hooks_meets_shards() -> None:
    _fails("mixed torch.Tensor and DTensor", _methods().full, torch.randn(4, 3))
    _fails("mixed torch.Tensor and DTensor", _methods().again, torch.randn(4, 3))


@check
def a_method_without_hooks_trains_nothing_after_an_evaluation() -> None:
    """It runs on the root's gathered parameters, and their gradients go nowhere."""
    for registered in ((), ("score",)):
        model = _methods(*registered)
        with torch.no_grad():
            model(torch.randn(4, 3))
        model.score(torch.randn(4, 5)).square().mean().backward()
        model.reshard()
        assert (model.head.weight.grad is not None) == bool(registered)


@check
def a_method_of_units_alone_must_not_come_first() -> None:
    """FSDP1 has the same limit; registered, the method may come first."""
    model = _methods()
    model.encode(torch.randn(4, 5))
    _fails("lazily initialized", model, torch.randn(4, 3))
    model = _methods("encode")
    model.encode(torch.randn(4, 5))
    model(torch.randn(4, 3))


@check
def a_nested_method_frees_what_a_part_still_needs() -> None:
    """Only a root that keeps its parameters after forward can have both registered."""
    _same_gradients("again", registered=("again", "full"))
    model = _methods("again", "full", reshard_after_forward=True)
    _fails("mixed torch.Tensor and DTensor", model.again, torch.randn(4, 3))


@check
def methods_of_units_may_come_first_where_parameters_are_gathered() -> None:
    """``unshard`` alone makes no root, as ``summon_full_params`` did."""
    x = torch.randn(4, 3)
    for recurse in (True, False):
        model = _methods()
        with torch.no_grad():
            model.unshard()
            model.full(x)
        _fails("lazily initialized", model, x)
        torch.manual_seed(0)
        expected = Methods()
        model = _methods()
        for _ in range(2):
            with torch.no_grad(), support.unsharded(model, recurse=recurse):
                assert torch.allclose(model.full(x), expected.full(x))
        found = _gradients(model, "forward")
        assert not any(name.startswith("_run") for name in vars(model))
        torch.manual_seed(0)
        whole = _gradients(Methods(), "forward")
        assert all(torch.allclose(whole[n], found[n], atol=1e-6) for n in whole)


@check
def a_policy_reduces_as_the_compressing_hooks_did() -> None:
    """What is advised for ``bf16_compress_hook``, which needs streams that a CPU does not have."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    losses = []
    for kind in ("hook", "policy", "neither"):
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))
        if kind == "hook":
            model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
            state = default_hooks.LowPrecisionState(dist.group.WORLD)
            model.register_comm_hook(state, default_hooks.bf16_compress_hook)
        elif kind == "policy":
            half = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
            model = fully_shard(model, mesh=mesh, mp_policy=half)
        else:
            model = fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with mock.patch.object(torch.Tensor, "record_stream"):
            losses.append(train(model, optimizer, 5))
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


# -- what FSDP1's ways come to on a model that FSDP2 shards ---------------------------------------


@check
def statics_of_fsdp1_pass_over_a_sharded_model() -> None:
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    shards = {isinstance(p, DTensor) for p in model.parameters()}
    with FSDP.summon_full_params(model):
        assert {isinstance(p, DTensor) for p in model.parameters()} == shards == {True}
    assert FSDP.fsdp_modules(model) == []
    assert not isinstance(model, FSDP)
    assert FSDP.get_state_dict_type(model) is None
    before = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    assert (before.state_dict_type, before.state_dict_config) == (None, None)
    assert isinstance(model.state_dict()["head.weight"], DTensor)
    found: list[object] = []

    def within() -> None:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            found.append(model.state_dict()["head.weight"])

    assert (raised(within), isinstance(found[0], DTensor)) == ("KeyError", True)
    assert raised(lambda: FSDP.optim_state_dict(model, optimizer)) == "AttributeError"
    # What the rewritten code has in their places.
    with support.full_params(model, writeback=False):
        assert not any(isinstance(p, DTensor) for p in model.parameters())
    assert [m for m in model.modules() if isinstance(m, FSDPModule)] == [model, model.block]
    with support.state_dict_type(model, support.StateDictType.FULL_STATE_DICT):
        assert not isinstance(model.state_dict()["head.weight"], DTensor)
        assert support.optim_state_dict(model, optimizer)["state"]


@check
def assigning_to_the_data_of_a_shard_does_nothing() -> None:
    model = sharded()
    before = whole(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.5
    assert all(value.equal(before[name]) for name, value in whole(model).items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.copy_(parameter.data * 0.5)
    assert all(value.equal(before[name] * 0.5) for name, value in whole(model).items())


@check
def numbers_of_shards_are_this_ranks_alone() -> None:
    """As FSDP1's were: what programs sum over the ranks by hand stays right."""
    torch.manual_seed(0)
    flat: Any = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    torch.manual_seed(0)
    model = sharded()
    squares = []
    for each in (flat, model):
        each(batch(0)).square().mean().backward()
        own = sum(p.grad.norm(2).item() ** 2 for p in each.parameters() if p.grad is not None)
        assert len(set(on_all_ranks(own))) == 2
        total = torch.tensor(own)
        dist.all_reduce(total)
        squares.append(total)
    torch.testing.assert_close(squares[0], squares[1])
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients(model).values()]))
    torch.testing.assert_close(squares[1].sqrt(), norm)
    gradient = model.block[0].weight.grad
    for number in (float(gradient.norm()), gradient.sum().item(), gradient.abs().max().item()):
        assert len(set(on_all_ranks(number))) == 2
    for value in (gradient.norm(), gradient.sum(), gradient.abs().max()):
        assert len(set(on_all_ranks(value.full_tensor().item()))) == 1
    assert len(set(on_all_ranks(gradient.std().item()))) == 1  # these communicate
    assert raised(lambda: f"{gradient.norm():.4f}") == "TypeError"
    assert raised(lambda: dist.all_reduce(gradient.norm())) == "NotImplementedError"
    assert raised(lambda: dist.all_reduce(model.head.weight.grad)) == "NotImplementedError"


@check
def states_are_found_after_an_evaluation() -> None:
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    weights = whole_state(model)
    state = optimizer_state(model, optimizer)
    options = StateDictOptions(full_state_dict=True)
    naive: tuple[Callable[[], object], ...] = (
        lambda: get_optimizer_state_dict(model, optimizer, options=options),
        lambda: set_optimizer_state_dict(model, optimizer, copy.deepcopy(state), options=options),
        lambda: set_model_state_dict(model, dict(weights), options=options),
    )
    ours: tuple[Callable[[], object], ...] = (
        lambda: optimizer_state(model, optimizer),
        lambda: load_optimizer(model, optimizer, state),
        lambda: load_whole(model, weights),
    )
    errors = []
    for call in (*naive, *ours):
        evaluate(model)
        errors.append(raised(call))
        support.reshard_parameters(model)
    assert errors == ["KeyError", "KeyError", "RuntimeError", "", "", ""]


@check
def an_optimizer_without_a_state_takes_its_settings() -> None:
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(model, optimizer)
    state = optimizer_state(model, optimizer)
    other = torch.optim.SGD(model.parameters(), lr=7.0)
    options = StateDictOptions(full_state_dict=True)
    given = copy.deepcopy(state)
    naive = raised(lambda: set_optimizer_state_dict(model, other, given, options=options))
    assert naive == "AssertionError"
    given = copy.deepcopy(state)
    for whole_only in (True, False):
        other = torch.optim.SGD(model.parameters(), lr=7.0)
        if whole_only:
            set_optimizer_state_dict(model, other, given)
        else:
            other.load_state_dict(support.optimizer_state_to_load(model, other, state))
        assert other.param_groups[0]["lr"] == 0.5


@check
def a_whole_state_on_the_cpu_is_for_every_rank_that_asks() -> None:
    model = sharded()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    assert on_all_ranks(bool(get_model_state_dict(model, options=options))) == [True, False]
    state = support.whole_on_cpu(get_model_state_dict(model))
    assert on_all_ranks(len(state)) == [len(Net().state_dict())] * 2
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    found = get_optimizer_state_dict(model, optimizer, options=options)
    assert on_all_ranks(bool(found)) == [True, False]
    assert on_all_ranks(len(optimizer_state(model, optimizer))) == [2, 2]


@check
def weights_that_are_assigned_are_not_trained() -> None:
    """Why ``load_state_dict(assign=True)`` is left: the optimizer keeps the parameters it has."""
    for assign in (True, False):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=assign)
        before = whole(model)
        train(model, optimizer)
        changed = any(not value.equal(before[name]) for name, value in whole(model).items())
        assert changed is not assign


@check
def gradients_that_were_not_reduced_outlive_zero_grad() -> None:
    """FSDP1 dropped them, and failed where an optimizer stepped on them."""
    left, errors = [], []
    for fsdp1 in (True, False):
        torch.manual_seed(0)
        model: Any = sharded() if not fsdp1 else _flat()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer)  # a root before no_sync
        with model.no_sync() if fsdp1 else support.no_sync(model):
            (1000 * model(batch(0)).square().mean()).backward()
            # What clips between micro-batches met them in FSDP1, and passes over them now.
            seen = torch.nn.utils.get_total_norm(
                [p.grad for p in model.parameters() if p.grad is not None]
            )
            assert bool(seen > 0) is fsdp1
            assert fsdp1 or all(p.grad is None for p in model.parameters())
            errors.append(raised(optimizer.step))
        optimizer.zero_grad()
        model(batch(1)).square().mean().backward()
        found = [_own(p.grad).abs().sum().item() for p in model.parameters() if p.grad is not None]
        left.append(max(found) > 10)
    assert left == [False, True]
    assert [bool(error) for error in errors] == [True, False]


def _flat() -> Any:
    return FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)


class Partly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 5), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(x)
        return result


@check
def parameters_that_nothing_used_have_no_gradient() -> None:
    """FSDP1 gave them zeros, by which weight decay and momentum moved them."""
    moved = []
    for kind in ("fsdp1", "fsdp2", "asked", "filled"):
        torch.manual_seed(0)
        model: Any = Partly()
        before = model.unused.weight.detach().clone()
        if kind == "fsdp1":
            model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            fully_shard(model)
        if kind == "asked":
            model.set_reduce_scatter_unused_params(True)
        if kind == "filled":
            support.zero_unused_gradients(model, "unused")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        train(model, optimizer)
        if kind == "fsdp1":
            with FSDP.summon_full_params(model):
                moved.append(not model.module.unused.weight.equal(before))
        else:
            moved.append(not whole(model)["unused.weight"].equal(before))
    assert moved == [True, False, True, True]


class Either(nn.Module):
    """Ranks take one of two parts of a size, in a unit and in the root; a third is a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(3, 3) for _ in range(3))
        self.up, self.down = nn.Parameter(torch.ones(3)), nn.Parameter(-torch.ones(3))

    def forward(self, x: torch.Tensor, kind: int) -> torch.Tensor:
        x = self.first(x) + self.up if kind else self.second(x) + self.down
        result: torch.Tensor = x if kind == 2 else x + self.third(x)
        return result


class Eithers(Either):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Either(), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, kind: int) -> torch.Tensor:
        result: torch.Tensor = self.last(super().forward(self.inner(x, kind), kind))
        return result


@check
def gradients_of_zero_meet_those_of_other_ranks() -> None:
    """Where ranks leave out other parts, FSDP2 alone averages gradients of unlike ones."""
    parts = "first", "second", "up", "down"
    for reshard, micro, half in (
        (True, 1, False),
        (False, 1, False),
        (True, 2, False),
        (True, 2, True),
    ):
        ends: list[dict[str, torch.Tensor]] = []
        for kind in ("fsdp1", "fsdp2", "filled"):
            torch.manual_seed(0)
            model: Any = Eithers()
            if kind == "fsdp1":
                model.third, model.inner.third = (
                    _flat_of(m.third, half) for m in (model, model.inner)
                )
                model.inner = _flat_of(model.inner, half)
                model = _flat_of(model, half)
            else:
                policy = (
                    MixedPrecisionPolicy(torch.bfloat16, torch.float32)
                    if half
                    else MixedPrecisionPolicy()
                )
                for unit in (model.third, model.inner.third, model.inner, model):
                    fully_shard(unit, reshard_after_forward=reshard, mp_policy=policy)
                for unit in (model, model.inner) if kind == "filled" else ():
                    support.zero_unused_gradients(unit, *parts)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)
            for step in range(8):
                last = step % micro == micro - 1
                if kind != "fsdp1":
                    model.set_requires_gradient_sync(last)
                with contextlib.nullcontext() if last or kind != "fsdp1" else model.no_sync():
                    model(
                        batch(step), (step // micro + dist.get_rank()) % 2
                    ).square().mean().backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                if step == 3:
                    with torch.no_grad():
                        model(batch(99), dist.get_rank())
            if kind == "fsdp1":
                with FSDP.summon_full_params(model):
                    ends.append(
                        {
                            n.replace("_fsdp_wrapped_module.", ""): p.detach().clone()
                            for n, p in model.named_parameters()
                        }
                    )
            else:
                ends.append(whole(model))
        expected, plain, filled = ends
        close = 5e-2 if half else 1e-6
        assert all(expected[name].allclose(filled[name], atol=close) for name in expected)
        assert not all(expected[name].allclose(plain[name], atol=5e-2) for name in expected)


def _flat_of(module: nn.Module, half: bool) -> Any:
    cast = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else None
    device = torch.device("cpu")
    return FSDP(module, device_id=device, use_orig_params=True, mixed_precision=cast)


@check
def an_overflow_on_one_rank_is_skipped_on_all() -> None:
    scales = []
    for scaler in (
        torch.amp.GradScaler("cpu", init_scale=1024.0),
        ShardedGradScaler(device="cpu", init_scale=1024.0),
    ):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = whole(model)
        for broken in (False, True):
            optimizer.zero_grad()
            scaler.scale(model(batch(0)).square().mean()).backward()
            if broken and dist.get_rank() == 1:
                model.block[0].weight.grad.to_local().fill_(float("inf"))
            scaler.unscale_(optimizer)
            if not broken:
                unscaled = gradients(model)
            scaler.step(optimizer)
            scaler.update()
            if not broken:
                after = whole(model)
                for name, value in after.items():
                    torch.testing.assert_close(value, before[name] - 0.1 * unscaled[name])
        assert all(value.equal(after[name]) for name, value in whole(model).items())
        scales.append(scaler.get_scale())
    assert on_all_ranks(scales) == [[512.0, 512.0]] * 2


@check
def positions_of_the_scalers_mean_other_things() -> None:
    """Why the rewritten call names its arguments."""
    old = ShardedGradScaler("cpu", 8.0, 0.25, 4.0)
    assert raised(lambda: torch.amp.GradScaler("cpu", 8.0, 0.25, 4.0)) == "AssertionError"
    named = torch.amp.GradScaler("cpu", init_scale=8.0, backoff_factor=0.25, growth_factor=4.0)
    factors = [(s.get_growth_factor(), s.get_backoff_factor()) for s in (old, named)]
    assert factors == [(4.0, 0.25), (4.0, 0.25)]


@check
def a_module_that_comes_later_is_not_reduced() -> None:
    """Why a module that replaces one of a sharded model is left."""
    model = sharded()
    model.head = nn.Linear(5, 1)
    model(batch(0)).square().mean().backward()
    assert len(set(on_all_ranks(model.head.bias.grad.sum().item()))) == 2
    model = Net()
    model.head = nn.Linear(5, 1)
    sharded(model)(batch(0)).square().mean().backward()
    assert len(set(on_all_ranks(gradients(model)["head.bias"].sum().item()))) == 1


@check
def sharded_parameters_have_no_address() -> None:
    model = sharded()
    parameters = list(model.parameters())
    assert {p.data_ptr() for p in parameters} == {0}
    assert all(p.untyped_storage().nbytes() == 4 * p.numel() for p in parameters)
    assert len({id(p) for p in parameters}) == len(parameters) == len(set(parameters))


@check
def sharded_models_are_neither_copied_nor_pickled() -> None:
    model = sharded()
    assert raised(lambda: copy.deepcopy(model)) == "AssertionError"
    assert raised(lambda: torch.optim.swa_utils.AveragedModel(model)) == "AssertionError"
    assert raised(lambda: torch.save(model, io.BytesIO())) == "PicklingError"


@check
def what_is_added_to_the_loss_must_be_whole() -> None:
    """A regulariser over shards fails; gathered, or over a root that is gathered, it is right."""

    def loss(each: Any, term: Callable[[Any], Any], *, first: bool = False) -> Any:
        terms = sum(map(term, each.parameters())) if first else 0.0
        output = each(batch(0)).square().mean()
        return output + (terms if first else sum(map(term, each.parameters())))

    plain = Net()
    reference: Any = DistributedDataParallel(copy.deepcopy(plain))
    loss(reference, lambda p: p.square().sum()).backward()
    for first in (True, False):
        total = loss(sharded(copy.deepcopy(plain)), lambda p: p.square().sum(), first=first)
        assert raised(total.backward) == "RuntimeError"
    for kind in ("gathered", "one unit"):
        model = (
            sharded(copy.deepcopy(plain))
            if kind == "gathered"
            else fully_shard(copy.deepcopy(plain))
        )
        if kind == "gathered":
            loss(model, lambda p: p.full_tensor().square().sum(), first=True).backward()
        else:
            loss(model, lambda p: p.square().sum()).backward()
        found = gradients(model)
        for name, parameter in reference.module.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


@check
def checkpointed_and_compiled_parts_keep_plain_keys() -> None:
    expected = list(Net().state_dict())
    for kind in ("checkpointed first", "checkpointed last", "compiled", "compiled around"):
        model: Any = Net()
        if kind == "checkpointed first":
            model.block = checkpoint_wrapper(model.block)
        if kind == "compiled":
            model.block.compile(backend="eager")
        model = sharded(model)
        if kind == "checkpointed last":
            model.block = checkpoint_wrapper(model.block)
        if kind == "compiled around":
            model = torch.compile(model, backend="eager")
            assert next(iter(model.state_dict())) == "_orig_mod.input.weight"
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
        state = whole_state(model)
        assert list(state) == expected
        load_whole(model, state)
        assert len(losses) == 2


class Listing(nn.Module):
    """Keeps one of its parameters in a list, which is not a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.decayed = [self.layer.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


@check
def what_held_parameters_before_sharding_goes_stale() -> None:
    """Optimizers, lists and attributes: FSDP1 with use_orig_params=True kept the parameters."""
    kept = []
    for fsdp1 in (True, False):
        torch.manual_seed(0)
        net: Any = Listing()
        net.layer.bias.free = True
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        before = net.layer.weight.detach().clone()
        if fsdp1:
            model: Any = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            model = fully_shard(net)
        attribute = any(hasattr(p, "free") for p in model.parameters())
        listed = any(net.decayed[0] is p for p in model.parameters())
        train(model, optimizer)
        if fsdp1:
            with FSDP.summon_full_params(model):
                trained = not net.layer.weight.equal(before)
        else:
            trained = not whole(model)["layer.weight"].equal(before)
        kept.append((attribute, listed, trained))
    assert kept == [(True, True, True), (False, False, False)]


@check
def values_drawn_for_shards_are_the_same_on_every_rank() -> None:
    model: Any = fully_shard(nn.Linear(4, 6))
    torch.manual_seed(0)
    nn.init.normal_(model.weight)
    first, second = whole(model)["weight"].chunk(2)
    assert first.equal(second)
    torch.manual_seed(0)
    drawn = nn.Linear(4, 6)
    nn.init.normal_(drawn.weight)
    expected = drawn.weight.detach().clone()
    assert whole(fully_shard(drawn))["weight"].equal(expected)
    assert not expected[:3].equal(expected[3:])


@check
def a_sharded_state_follows_the_training() -> None:
    """FSDP1's was a copy; ours is one where it is kept."""
    model = sharded()
    naive = get_model_state_dict(model)
    copied = copy.deepcopy(naive)
    full = copy.deepcopy(whole_state(model))
    before = {name: value.clone() for name, value in full.items()}
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    after = whole(model)
    for name, value in after.items():
        assert _whole(naive[name]).equal(value)
        assert _whole(copied[name]).equal(before[name])
        assert full[name].equal(before[name])
    assert not after["head.weight"].equal(before["head.weight"])


@check
def every_rank_is_first_where_parameters_are_not_sharded() -> None:
    """As under NO_SHARD, where FSDP1 gave all ranks the state; DCP gives it to one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh=mesh)
    state = support.full_model_state(model, cpu_offload=True)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    naive = get_model_state_dict(model, options=options)
    found = on_all_ranks((len(state), len(naive)))
    assert found[0][0] == found[1][0] == found[0][1]
    assert found[1][1] == 0


@check
def a_norm_that_is_not_gathered_is_this_ranks() -> None:
    """Of torch's clipping by the infinity norm; clip_grad_norm_ gives all ranks the same."""
    model: Any = fully_shard(nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)))
    model(batch(0)).square().mean().backward()
    naive = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, norm_type=float("inf"))
    assert len(set(on_all_ranks(naive.item()))) == 2
    ours = support.clip_grad_norm_(model, 1e9, float("inf"))
    assert len(set(on_all_ranks(ours.item()))) == 1


@check
def inputs_of_units_are_cast_unless_told_otherwise() -> None:
    """FSDP1 cast the root's inputs alone."""

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            seen.append(table.dtype)
            result: torch.Tensor = self.layer(x)
            return result

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit = Unit()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.unit(x, torch.ones(4))
            return result

    seen: list[torch.dtype] = []
    for cast in (True, False):
        model = Root()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=cast)
        fully_shard(model.unit, mp_policy=policy)
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        model(torch.ones(2, 4))
    assert seen == [torch.bfloat16, torch.float32]


@check
def roots_are_those_of_fsdp1() -> None:
    cpu = torch.device("cpu")
    old, new = (nn.Sequential(*(nn.Sequential(nn.Linear(2, 2)) for _ in range(3))) for _ in "ab")
    for index in (0, 2):
        old[index][0] = FSDP(old[index][0], device_id=cpu)
        old[index] = FSDP(old[index], device_id=cpu)
        fully_shard(new[index][0])
        fully_shard(new[index])
    assert len(FSDP.fsdp_modules(old, root_only=True)) == 2
    assert support.root_units(new) == [new[0], new[2]]
    around: nn.Module = fully_shard(new)
    assert support.root_units(around) == [around]
    assert support.root_units(nn.Linear(2, 2)) == []


@check
def own_parts_add_up_to_the_whole() -> None:
    """What FSDP1's parameters and gradients were; a plain norm is that of all ranks already."""
    model: Any = fully_shard(nn.Linear(3, 5, bias=False))  # of uneven parts
    model(batch(0)).square().mean().backward()
    gradient = model.weight.grad
    assert isinstance(gradient, DTensor)
    whole = float(gradient.full_tensor().square().sum())
    parts = on_all_ranks(float(support.own_part(gradient).square().sum()))
    assert abs(sum(parts) - whole) < 1e-6 * whole
    assert sum(on_all_ranks(float(gradient.square().sum().full_tensor()))) > whole * 1.5
    plain = torch.ones(2)
    assert support.own_part(plain) is plain
