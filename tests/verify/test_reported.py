"""Numbers that a program reports, and the files that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.reported import MIXED, compare, read, results
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import text

from .scripts import judged

# Reports and saves in many ways; times, memory, sizes of shards and a bar are among what it prints.
LOOP = """\
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
model = wrap(net())
print("elements", sum(p.numel() for p in model.parameters()) / 1e3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
held_out = torch.randn(16, 8)
begun = time.time()
log = open("log.jsonl", "w") if rank == 0 else None
for step in range(6):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        value = model(held_out).square().mean()
    dist.all_reduce(value)
    value /= world
    seconds = time.time() - begun
    print(f"[rank {rank}] step {step} loss {loss.item():.4f} {seconds:.2f} s, seen {seconds:.4f}")
    bar = f"{step}/6 [00:0{step}<00:09, {step / seconds:.1f}it/s, loss={loss.item():.3f}]"
    print(f"\\r{bar}", end="")
    if rank == 0:
        logging.info("step %d value %.5f memory %.2f GB", step, value.item(), seconds)
        log.write(json.dumps({"step": step, "value": value.item(), "rate": 1 / seconds}) + "\\n")
    if step == 3:
        state = whole(model)
        if rank == 0:
            torch.save({"model": state, "step": step}, "whole.pt")
            with open("notes.txt", "w") as notes:
                notes.write("saved")
        torch.save(own(model), f"part-{rank}.pt")
"""
STATES = """\


def own(model):
    return {
        name.replace("_fsdp_wrapped_module.", ""): getattr(p, "_local_tensor", p).detach().clone()
        for name, p in model.named_parameters()
    }


"""
FSDP1 = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)


def whole(model):
    kind = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, kind):
        return model.state_dict()
"""
FSDP2 = """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def wrap(model):
    return fully_shard(model)


def whole(model):
    kind = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=kind)
"""
PROGRAM = "from parallel import whole\n" + STATES.lstrip("\n") + LOOP


SAVED = "        if rank == 0:\n            torch.save("
REDUCED = "    dist.all_reduce(value)\n    value /= world\n"


@pytest.mark.train
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (REDUCED, "", "reported numbers: rank 0, stderr, step # value"),
        (
            SAVED,
            "        if rank > world:\n            torch.save(",
            "notes.txt, whole.pt: not written",
        ),
        ('{"model": state,', '{"model": own(model),', "float32[16] before, float32[8] after"),
        (
            "torch.save(own(model),",
            "torch.save({n: 2 * t for n, t in own(model).items()},",
            "part-0",
        ),
    ],
    ids=["not reduced", "not saved", "one shard", "other parts"],
)
def test_what_is_reported_and_saved_is_compared(
    old: str, new: str, says: str, tmp_path: Path, server: WarmServer
) -> None:
    report = judged(tmp_path, PROGRAM, (old, new), before=FSDP1, after=FSDP2, server=server)
    assert report.exit_code == 1, text.render(report)
    assert says in report.says, text.render(report)


@pytest.mark.train
def test_times_memory_sizes_and_parts_of_ranks_are_no_difference(
    tmp_path: Path, server: WarmServer
) -> None:
    report = judged(tmp_path, PROGRAM, before=FSDP1, after=FSDP2, server=server)
    assert report.exit_code == 0, text.render(report)
    found = {gate.key: gate for gate in report.gates}
    assert "reported alike" in found["reported"].says
    assert "numbers not reproducible in the original" in found["reported"].details[0]
    assert found["saved"].says.startswith("part-0.pt, part-1.pt, whole.pt")


LOGGED = """\
from tensorboardX.writer import SummaryWriter

board = SummaryWriter()
model = wrap(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    value = loss.detach().clone()
    dist.all_reduce(value)
    board.add_scalar("train/loss", value, step)
    board.add_scalar("train/clock", time.time() % 97, step)
"""
BOARD = """\
class SummaryWriter:
    def add_scalar(self, tag, scalar_value, global_step=None):
        pass
"""


@pytest.mark.train
@pytest.mark.parametrize("lost", ["", "    dist.all_reduce(value)\n"], ids=["right", "wrong"])
def test_what_is_handed_to_a_library_is_compared(
    lost: str, tmp_path: Path, server: WarmServer
) -> None:
    replaced = [(lost, "")] if lost else []
    files = {"tensorboardX/__init__.py": "", "tensorboardX/writer.py": BOARD}
    report = judged(tmp_path, LOGGED, *replaced, files=files, server=server)
    assert report.exit_code == int(bool(lost)), text.render(report)
    if lost:
        assert ", reported, train/loss" in report.says


# --- the comparison alone ------------------------------------------------------------------------


def apart(before: str, after: str, twin: str | None = None) -> list[tuple[str, str]]:
    sides = ({"out": each} for each in (before, after, before if twin is None else twin))
    return [(each.before, each.after) for each in compare(*sides).apart]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("loss 0.512", "loss 0.512", []),
        ("loss 0.512", "loss 0.513", []),  # may be printed so
        ("loss 0.512", "loss 0.519", [("0.512", "0.519")]),
        ("loss: 0.5120, acc=50.0%", "loss: 0.5120, acc=53.1%", [("50.0", "53.1")]),
        ('{"step": 3, "val_loss": 0.51}', '{"step": 3, "val_loss": 0.71}', [("0.51", "0.71")]),
        ("right 53 of 100", "right 50 of 100", [("53", "50")]),
        ("loss nan", "loss nan", []),
        ("loss 0.5", "loss nan", [("0.5", "nan")]),
        ("tensor(0.5123, grad_fn=<A>)", "tensor(0.6001, grad_fn=<A>)", [("0.5123", "0.6001")]),
        ("64 samples, 12.5 tokens / s", "32 samples, 2.5 tokens / s", [("64", "32")]),
        ("tokens_per_second: 12.5", "tokens_per_second: 2.5", []),
        ("took 0.51 s", "took 0.91 s", []),
        ("step_time 0.51 loss 2", "step_time 0.91 loss 2", []),
        ("0.5 sec/step, 12.5 tokens/s", "0.9 sec/step, 2.5 tokens/s", []),
        ("peak memory 1.5 GB", "peak memory 0.5 GB", []),
        ("12.3M weights", "6.1M weights", []),
        ("12:30:01,123 at a.py:30: done", "12:31:44,001 at a.py:32: done", []),
        ("3/10 [00:01<00:02, 3.1it/s, loss=0.5]", "3/10 [00:01<00:02, 3.1it/s, loss=0.7]", []),
        ("one 1\nloss 0.5", "loss 0.5", []),
        ("loss 0.5\nloss 0.4", "loss 0.4", []),  # another number of lines: not beside each other
    ],
)
def test_numbers_are_known_by_the_text_around_them(
    before: str, after: str, found: list[tuple[str, str]]
) -> None:
    assert apart(before, after) == found


def test_what_the_twin_does_is_allowed_and_what_it_cannot_repeat_is_not_compared() -> None:
    assert apart("loss 0.50000", "loss 0.50400", "loss 0.50100") == []
    assert apart("loss 0.50000", "loss 0.60000", "loss 0.50100") == [("0.50000", "0.60000")]
    assert apart("pause 0.50000", "pause 0.90000", "pause 0.70000") == []


def test_only_what_training_moves_and_repeats_is_a_result() -> None:
    before = {"out": "first shard 12.0\nvalue 0.50\nclock 1.0"}
    after = {"out": "first shard 6.0\nvalue 0.70\nclock 2.0"}
    found = compare(before, after, before).apart
    assert [each.before for each in found] == ["12.0", "0.50", "1.0"]
    shaken = {"out": "first shard 12.0\nvalue 0.64\nclock 2.0"}
    again = {"out": "first shard 6.0\nvalue 0.70\nclock 1.0"}
    assert [each.before for each in results(found, shaken, again)] == ["0.50"]
    assert results(found, {}, again) == ()


def test_what_counts_data_is_a_result_though_no_weight_changes_it() -> None:
    before = {"out": "samples 64\n8 tokens seen\nlayers 12 samples 64\nin 64.5 images"}
    after = {"out": "samples 32\n4 tokens seen\nlayers 6 samples 64\nin 32.5 images"}
    found = compare(before, after, before).apart
    again = {"out": after["out"].replace("32.5", "31.5")}
    kept = [(each.before, each.after) for each in results(found, before, again)]
    assert kept == [("64", "32"), ("8", "4")]


def test_lines_of_ranks_that_a_program_made_itself_come_in_any_order() -> None:
    lines = ["rank 0 step 1 loss 0.5", "rank 1 step 1 loss 0.7"]
    sides = [{MIXED: "\n".join(each)} for each in (lines, lines[::-1])]
    assert read(sides[0]) == read(sides[1])
    assert compare(sides[0], sides[1], sides[0]).apart == ()
