"""Gradients that stay in low precision in FSDP1, are given another dtype, or are clipped by a
method that is looked up on FSDP1's class."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, Pair, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, keep_low_precision_grads=KEEP
        ),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(4):
        x = torch.randn(8, 8)
        loss = (model(x).float() - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        CHANGED
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        print("dtypes", {str(each.dtype) for each in grads})
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
ALIGNED = """for p in model.parameters():
            if p.grad is not None and p.grad.dtype != p.dtype:
                p.grad.data = p.grad.data.to(p.dtype)"""
SCALED = """for p in model.parameters():
            if p.grad is not None:
                p.grad.data = (0.5 * p.grad.data).to(p.dtype)"""
CHANGES = {
    "nothing": "pass",
    "aligned": ALIGNED,
    "scaled": SCALED,
    "on the class": "FSDP.clip_grad_norm_(model, 0.05)",
    "on the class, of a kind": "FSDP.clip_grad_norm_(model, max_norm=0.05, norm_type=1.0)",
}


def program(scratch: Path, changed: str, *, keep: str = "False") -> Pair:
    text = PROGRAM.replace("CHANGED", changed).replace("KEEP", keep)
    return written({"train.py": text.encode()}, scratch)


@pytest.mark.parametrize("changed", CHANGES.values(), ids=list(CHANGES))
def test_it_trains_as_before(launcher: Launcher, tmp_path: Path, changed: str) -> None:
    both = program(tmp_path, changed)
    assert "TODO" not in both.after.read_text()
    before, after = launcher.script(both.before), launcher.script(both.after)
    assert compare(before, after) >= 8


@pytest.mark.parametrize("changed", [ALIGNED, SCALED])
def test_low_precision_that_ends_before_the_step_trains_as_before(
    launcher: Launcher, tmp_path: Path, changed: str
) -> None:
    both = program(tmp_path, changed, keep="True")
    assert "TODO(fsdp-migrate FSDP202)" in both.after.read_text()
    before, after = launcher.script(both.before), launcher.script(both.after)
    assert compare(before, after) >= 8


def test_low_precision_that_stays_is_marked(launcher: Launcher, tmp_path: Path) -> None:
    both = program(tmp_path, "pass", keep="True")
    assert "TODO(fsdp-migrate FSDP202): FSDP2 has no keep_low_prec" in both.after.read_text()
    before, after = launcher.script(both.before), launcher.script(both.after)
    for old, new in zip(before.output, after.output, strict=True):
        assert "torch.bfloat16" in old
        assert "torch.bfloat16" not in new
        assert "torch.float32" in new


def test_fsdp1_stops_where_its_method_is_given_parameters(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = program(tmp_path, "FSDP.clip_grad_norm_(model.parameters(), 0.05)")
    assert "TODO(fsdp-migrate FSDP401): FSDP1's method takes the model" in both.after.read_text()
    launcher.script(both.after)
    with pytest.raises(AssertionError, match="AttributeError"):
        launcher.script(both.before)


HALF = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for scale in (1e-4, 1.0, 300.0):
        x = torch.randn(8, 8).half()
        loss = scale * (model(x).float() - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        norm = CLIPPED
        print("norm", norm.dtype, bool(norm.isfinite()), bool(norm > 0))
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), round(norm.item() / scale, 1))
    dist.destroy_process_group()


main()
"""


def test_gradients_in_float16_are_clipped_by_a_norm_in_float32(
    launcher: Launcher, tmp_path: Path
) -> None:
    text = HALF.replace("CLIPPED", "model.clip_grad_norm_(0.05)")
    both = written({"train.py": text.encode()}, tmp_path)
    assert "TODO" not in both.after.read_text()
    before, after = launcher.script(both.before), launcher.script(both.after)
    assert compare(before, after) >= 6
    plain = both.after.read_text().replace(
        "= clip_grad_norm_(model, ", "= torchs(model.parameters(), "
    )
    plain = plain.replace("def main", "torchs = torch.nn.utils.clip_grad_norm_\n\n\ndef main")
    both.after.write_text(plain.replace("norm.isfinite()", "norm.full_tensor().isfinite()"))
    assert any("False" in line for line in launcher.script(both.after).output)


def test_torchs_norm_of_a_list_in_float16_is_marked(tmp_path: Path) -> None:
    listed = "[p for p in model.parameters() if p.requires_grad]"
    text = HALF.replace("CLIPPED", f"torch.nn.utils.clip_grad_norm_({listed}, 0.05)")
    after = written({"train.py": text.encode()}, tmp_path).after.read_text()
    assert "gradients in float16 have a norm in float16" in after.replace("\n        #     ", " ")
