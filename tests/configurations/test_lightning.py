"""Lightning's FSDPStrategy: when the hook is written, and what else is said."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import lightning as L
import torch


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def training_step(self, batch, index):
        return self.linear(batch).sum()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = L.Trainer(accelerator="gpu", devices=2, strategy="fsdp")
trainer.fit(Net(), loader)
"""


def test_is_written() -> None:
    result, after = migrate({"train.py": PROGRAM})
    assert [(d.code, d.outcome) for d in result.decisions] == [("FSDP530", Outcome.REWRITTEN)]
    assert "data_parallel_size=2" in after["train.py"]
    assert "save_distributed_checkpoint=False" in after["train.py"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("devices=2", "devices=2, callbacks=[ema]", "the Trainer has callbacks"),
        ("devices=2", "devices=2, sync_batchnorm=True", "the Trainer has sync_batchnorm"),
        ("devices=2", "devices=args.devices", "number of processes"),
        ("devices=2", 'devices=2, precision="16-mixed"', "refuses precision 16-mixed"),
        ('"fsdp"', '"fsdp_cpu_offload"', "moves the whole model to the device"),
        ("torch.optim.AdamW", "Muon", "element by element"),
        ("loader)", "loader)\ntorch.save(model, path)", "calls torch.save"),
        (
            "    def training",
            "    def configure_model(self): ...\n\n    def training",
            "a hook was",
        ),
        ("loader)", "loader)\n\n\nclass Other(Net):\n    pass", "Other derives from Net"),
        ("loader)", "loader)\nL.Trainer(devices=2)", "another Trainer"),
        ("(batch).sum()", "(batch).sum() + self.linear.weight.grad.norm()", "asks for"),
    ],
)
def test_is_left(old: str, new: str, said: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace(old, new)})
    (decision,) = result.decisions
    assert (decision.code, decision.outcome) == ("FSDP530", Outcome.LEFT)
    assert said in decision.message, decision.message
    assert "ModelParallelStrategy(" not in after["train.py"].replace("`ModelParallelStrategy(", "")


def test_what_is_left_says_what_to_write() -> None:
    source = PROGRAM.replace("devices=2", "devices=4, num_nodes=2, callbacks=[ema]")
    result, _ = migrate({"train.py": source})
    (decision,) = result.decisions
    assert "ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1" in decision.help
    assert "register_fsdp_forward_method(self, step)" in decision.help


def test_fabric_is_told_of_its_function_and_of_separate_setups() -> None:
    source = """\
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy

fabric = Fabric(devices=2, strategy=FSDPStrategy(auto_wrap_policy={Block}))
"""
    result, _ = migrate({"train.py": source})
    (decision,) = result.decisions
    assert "ModelParallelStrategy(parallelize_fn=parallelize, data_parallel_size=2" in decision.help
    assert "isinstance(m, Block)" in decision.help
    assert "setup_optimizers(optimizer)" in decision.help
