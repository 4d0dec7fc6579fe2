"""Tensors of an optimizer's state: what is counted, looked at, read off, sent and written."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import copy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves
from sizes import Meter, bytes_of, listed, of_each, size, sizes_in, tensors, total


def main(net, loader, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, loader)
"""
HELPERS = """\
import torch


def bytes_of(given):
    return sum(t.nbytes for s in given.state.values() for t in s.values() if torch.is_tensor(t))


def tensors(given):
    for state in given.state.values():
        yield from state.values()


def total(state):
    count = 0
    for each in state.values():
        for name, value in each.items():
            if name != "step":
                count += value.numel() * value.element_size()
    return count


def size(tensor):
    return tensor.numel() if torch.is_tensor(tensor) else 0


def listed(given):
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def of_each(given, function):
    return [of_each(x, function) for x in given] if isinstance(given, list) else function(given)


def sizes_in(saved):
    return [saved["state"][i]["exp_avg"].numel() for i in saved["state"]]


class Meter:
    def __init__(self, given):
        self.given = given

    def bytes(self):
        found = 0
        for group in self.given.param_groups:
            for p in group["params"]:
                state = self.given.state[p]
                found += state["exp_avg"].untyped_storage().nbytes()
        return found
"""
STATES = "for s in optimizer.state.values()"
COUNTS = {
    "bytes": f"print(sum(t.numel() * t.element_size() {STATES} for t in s.values()))",
    "bytes of one": 'print([optimizer.state[p]["exp_avg_sq"].nbytes for p in model.parameters()])',
    "in a list": f"print([[t][0].nbytes {STATES} for t in s.values()])",
    "in a dictionary": f"print([{{'t': t}}['t'].nbytes {STATES} for t in s.values()])",
    "or another": f"print([(t or other).nbytes {STATES} for t in s.values()])",
    "storages": f"print([t.untyped_storage().nbytes() {STATES} for t in s.values()])",
    "of torch": f'print(sum(torch.numel(s["exp_avg"]) {STATES}))',
    "by map": f'print(sum(map(torch.numel, [s["exp_avg"] {STATES}])))',
    "of the state dictionary": (
        'print(sum(s["exp_avg"].numel() for s in optimizer.state_dict()["state"].values()))'
    ),
    "of a copy": (
        "kept = copy.deepcopy(optimizer.state)\n"
        'print(sum(s["exp_avg"].shape.numel() for s in kept.values()))'
    ),
    "leaves": "print(sum(t.nbytes for t in tree_leaves(dict(optimizer.state))))",
    "in a loop": (
        "for p, s in optimizer.state.items():\n"
        "    for name, value in s.items():\n"
        "        if torch.is_tensor(value):\n"
        "            print(name, value.detach().nelement())"
    ),
    "what is there": (
        'for group in optimizer.param_groups:\n    for p in group["params"]:\n'
        '        held = optimizer.state[p].get("exp_avg")\n        print(held.nbytes)'
    ),
    "of a parameter": 'print(optimizer.state[next(model.parameters())]["exp_avg"].data_ptr())',
    "of several": (
        "for each in [optimizer, torch.optim.SGD(model.parameters())]:\n"
        "    print([t.nbytes for s in each.state.values() for t in s.values()])"
    ),
    "of the first": 'print(next(iter(optimizer.state.values()))["exp_avg"].nbytes)',
    "of a list": 'first = list(optimizer.state.values())[0]\nprint(first["exp_avg"].numel())',
    "of an entry": (
        'saved = {"step": 1, "optim": optimizer.state_dict()}\n'
        'print([s["exp_avg"].numel() for s in saved["optim"]["state"].values()])'
    ),
    "of an entry that is put there": (
        'saved = {}\nsaved["optim"] = optimizer.state_dict()\n'
        'print([s["exp_avg"].numel() for s in saved["optim"]["state"].values()])'
    ),
    "of an entry of an entry": (
        'saved = {}\nfor name in ("a", "b"):\n'
        '    saved[name] = {"net": model.state_dict(), "optim": optimizer.state_dict()}\n'
        'print([s["exp_avg"].numel() for s in saved["a"]["optim"]["state"].values()])'
    ),
    "of one of two": (
        "step, moments = 1, optimizer.state_dict()\n"
        'print([s["exp_avg"].numel() for s in moments["state"].values()])'
    ),
    "in a vector": f'print(torch.cat([s["exp_avg"].flatten() {STATES}]).shape)',
}
HANDED_ON = {
    "of the optimizer": "print(bytes_of(optimizer))",
    "of the state": "print(total(optimizer.state))",
    "of a generator": "print(sum(size(t) for t in tensors(optimizer)))",
    "of each tensor": f"print(sum(size(t) {STATES} for t in s.values()))",
    "of the dictionary": "print(sizes_in(optimizer.state_dict()))",
    "of an object": "print(Meter(optimizer).bytes())",
}
MARKED = {
    "shape": f'print([s["exp_avg"].shape {STATES}])',
    "number": f'print([s["exp_avg"].norm().item() {STATES}])',
    "tensor": f'print([s["exp_avg"].abs().mean() {STATES}])',
    "largest": f'print(max(float(s["exp_avg_sq"].max()) {STATES}))',
    "deviation": 'print(optimizer.state[next(model.parameters())]["exp_avg"].std())',
    "update": (
        "for p in model.parameters():\n    s = optimizer.state[p]\n"
        '    step = s["exp_avg"] / (s["exp_avg_sq"].sqrt() + 1e-8)\n    print(step.norm())'
    ),
    "elements": f'print([s["exp_avg"].flatten()[:3] {STATES}])',
    "file": "torch.save(optimizer.state, path)",
}
NEITHER = {
    "names": f"print([list(s) {STATES}])",
    "steps": f'print([s["step"].item() {STATES}])',
    "whether it has a shape": f"print([t.dim() > 0 {STATES} for t in s.values()])",
    "in place": 'for s in optimizer.state.values():\n    s["exp_avg"].zero_()',
    "moved": (
        "for s in optimizer.state.values():\n    for name, value in s.items():\n"
        '        s[name] = value.to("cpu")'
    ),
    "copied": (
        "other = torch.optim.AdamW(model.parameters())\nfor p, s in optimizer.state.items():\n"
        "    other.state[p] = {name: copy.copy(value) for name, value in s.items()}"
    ),
    "a file": (
        'saved = torch.load(path)\nprint([s["exp_avg"].numel() for s in saved["state"].values()])'
    ),
    "a plain model's": (
        "plain = torch.optim.AdamW(nn.Linear(2, 2).parameters())\n"
        "print([t.nbytes for s in plain.state.values() for t in s.values()])"
    ),
    "a plain model's norms": (
        "plain = torch.optim.AdamW(nn.Linear(2, 2).parameters())\n"
        'print([s["exp_avg"].norm().item() for s in plain.state.values()])'
    ),
    "handed on": (
        "plain = torch.optim.AdamW(nn.Linear(2, 2).parameters())\n"
        "print(bytes_of(plain), sizes_in(plain.state_dict()), Meter(plain).bytes())"
    ),
    "DDP's": (
        "twin = DistributedDataParallel(nn.Linear(2, 2))\n"
        "other = torch.optim.SGD(twin.parameters())\n"
        'print([other.state[p]["momentum_buffer"].shape for p in twin.parameters()])'
    ),
    "another entry's": (
        'saved = {"optim": optimizer.state_dict(), "net": {"state": torch.load(path)}}\n'
        'print([v["mean"].numel() for v in saved["net"]["state"].values()])'
    ),
    "another that is put there": (
        'saved = {}\nsaved["optim"] = optimizer.state_dict()\nsaved["net"] = torch.load(path)\n'
        'print([v["mean"].numel() for v in saved["net"]["state"].values()])'
    ),
    "a plain model's entry": (
        "plain = torch.optim.AdamW(nn.Linear(2, 2).parameters())\n"
        'saved = {"optim": plain.state_dict()}\n'
        'print([s["exp_avg"].numel() for s in saved["optim"]["state"].values()])'
    ),
    "a trainer's": (
        "trainer = make(model)\nprint([v.numel() for s in trainer.state.values() for v in s])"
    ),
    "of what a helper gives back that is given tensors elsewhere": (
        "for s in optimizer.state.values():\n    of_each(listed(s.values()), torch.zero_)\n"
        "for batch in loader:\n    print([b.numel() for b in listed(batch)])"
    ),
    "of nothing known": 'print([b.numel() for b in loader], loader.state["epoch"])',
}


def run(use: str, *, head: str = HEAD) -> tuple[list[tuple[Outcome, str]], dict[str, str]]:
    body = "".join(f"    {line}\n" for line in use.split("\n"))
    result, after = migrate({"train.py": head + body, "sizes.py": HELPERS})
    return [(d.outcome, d.help) for d in result.decisions if d.code == "FSDP408"], after


@pytest.mark.parametrize("case", [*COUNTS, *HANDED_ON])
def test_what_is_counted_is_this_ranks_part(case: str) -> None:
    use = {**COUNTS, **HANDED_ON}[case]
    found, after = run(use)
    assert [outcome for outcome, _ in found] == [Outcome.REWRITTEN]
    assert "own_part" in after["sizes.py" if case in HANDED_ON else "train.py"]
    assert migrate(after)[0].changes == {}


@pytest.mark.parametrize("case", MARKED)
def test_what_is_another_number_is_marked_once(case: str) -> None:
    found, after = run(MARKED[case])
    [(outcome, why)] = found
    assert outcome is Outcome.REVIEW
    assert why
    assert after["train.py"].count("TODO(fsdp-migrate FSDP408)") == 1


@pytest.mark.parametrize("case", NEITHER)
def test_what_is_the_same_stays(case: str) -> None:
    found, after = run(NEITHER[case])
    assert found == []
    for line in NEITHER[case].split("\n"):
        assert line in after["train.py"]


@pytest.mark.parametrize("case", ["bytes", "storages", "in a loop"])
def test_what_every_rank_has_stays(case: str) -> None:
    head = HEAD.replace("FSDP(net, ", "FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD, ")
    head = head.replace("import Fully", "import ShardingStrategy, Fully")
    found, after = run(COUNTS[case], head=head)
    assert {outcome for outcome, _ in found} == {Outcome.REWRITTEN}
    assert "own_part" not in after["train.py"]


def test_what_map_goes_over_is_a_part_each() -> None:
    _, after = run(COUNTS["by map"])
    assert "map(torch.numel, map(own_part, [s" in after["train.py"]


def test_what_is_sent_is_this_ranks_part() -> None:
    found, after = run('for s in optimizer.state.values():\n    dist.all_reduce(s["exp_avg"])')
    assert [outcome for outcome, _ in found] == [Outcome.REVIEW]
    assert 'dist.all_reduce(own_part(s["exp_avg"]))' in after["train.py"]


def test_data_is_copied_in_place() -> None:
    use = 'for s in optimizer.state.values():\n    s["exp_avg"].data = s["exp_avg"] * 0.5'
    found, after = run(use)
    assert [outcome for outcome, _ in found] == [Outcome.REWRITTEN]
    assert 's["exp_avg"].data.copy_(s["exp_avg"] * 0.5)' in after["train.py"]


@pytest.mark.parametrize("write", ['s["exp_avg"][0] = 0', 's["exp_avg"][:2].zero_()'])
def test_items_are_those_of_this_ranks_part(write: str) -> None:
    found, after = run(f"for s in optimizer.state.values():\n    {write}")
    assert [outcome for outcome, _ in found] == [Outcome.REVIEW]
    assert write.replace('s["exp_avg"]', 'own_part(s["exp_avg"])', 1) in after["train.py"]


def test_what_is_added_up_over_the_ranks_is_taken_of_each_ones_part() -> None:
    use = (
        "moved = torch.zeros(())\nfor p in model.parameters():\n"
        '    moved += optimizer.state[p]["exp_avg"].norm() ** 2\ndist.all_reduce(moved)'
    )
    found, after = run(use)
    assert {outcome for outcome, _ in found} == {Outcome.REWRITTEN}
    assert 'own_part(optimizer.state[p]["exp_avg"]).norm() ** 2' in after["train.py"]
