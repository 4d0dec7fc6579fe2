"""Lightning's FSDPStrategy: when the hook is written, and what else is said."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.writing import unmarked, write_one
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
        ("devices=2", "devices=2, callbacks=[ema]", "the Trainer has callbacks=ema"),
        ("devices=2", "devices=2, callbacks=callbacks()", "the Trainer has callbacks=callbacks()"),
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


@pytest.mark.parametrize(
    ("head", "given", "size"),
    [
        ("devices = count()\n", "devices=devices", "data_parallel_size=devices,"),
        (
            "args = parse()\n",
            "devices=args.devices, num_nodes=2",
            "data_parallel_size=2 * args.devices,",
        ),
        (
            "args = parse()\n",
            "devices=args.devices, num_nodes=args.nodes",
            "data_parallel_size=args.nodes * args.devices,",
        ),
    ],
)
def test_a_number_that_only_the_run_knows_is_for_review(head: str, given: str, size: str) -> None:
    """Lightning stops where the sizes are not those of all processes."""
    source = PROGRAM.replace("devices=2", given).replace("trainer =", f"{head}trainer =")
    result, after = migrate({"train.py": source})
    (decision,) = result.decisions
    assert decision.outcome is Outcome.REVIEW
    assert "has to be a number" in " ".join(after["train.py"].split())
    assert size in after["train.py"], after["train.py"]


def test_a_number_that_is_another_where_the_strategy_is_made_is_not_known() -> None:
    source = PROGRAM.replace("devices=2", "devices=n").replace(
        "trainer =", "n = 1\nn = count()\ntrainer ="
    )
    result, _ = migrate({"train.py": source})
    assert "number of processes" in result.decisions[0].message


def test_what_is_left_says_what_to_write() -> None:
    source = PROGRAM.replace("devices=2", "devices=4, num_nodes=2, callbacks=[ema]")
    result, _ = migrate({"train.py": source})
    (decision,) = result.decisions
    assert "ModelParallelStrategy(data_parallel_size=8, tensor_parallel_size=1" in decision.help
    assert "register_fsdp_forward_method(self, step)" in decision.help


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("devices=2", "devices=2, callbacks=[L.pytorch.callbacks.ModelCheckpoint('models')]"),
        ("devices=2", "devices=2, callbacks=L.pytorch.callbacks.Timer()"),
        (
            "trainer = L.Trainer(accelerator",
            "from lightning.pytorch.callbacks import EarlyStopping\n\nstop = EarlyStopping('x')\n"
            "trainer = L.Trainer(callbacks=[stop], accelerator",
        ),
    ],
)
def test_callbacks_that_ask_for_no_parameters_are_no_reason(old: str, new: str) -> None:
    result, _ = migrate({"train.py": PROGRAM.replace(old, new)})
    assert [d.outcome for d in result.decisions] == [Outcome.REWRITTEN]


def test_parts_that_are_checkpointed_and_not_units_are_left() -> None:
    strategy = "FSDPStrategy(auto_wrap_policy={Block}, activation_checkpointing_policy={Other})"
    source = PROGRAM.replace('"fsdp"', strategy).replace(
        "import torch\n",
        "import torch\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
        "\nclass Block(torch.nn.Linear): ...\n\nclass Other(torch.nn.Linear): ...\n",
    )
    result, _ = migrate({"train.py": source})
    (decision,) = result.decisions
    assert "other parts of it are checkpointed than sharded" in decision.message
    same = source.replace("{Other}", "{Block}")
    result, after = migrate({"train.py": same})
    assert "isinstance(module, CheckpointWrapper)" in after["train.py"]
    own = same.replace("import torch\n", "import torch\nfrom x import checkpoint_wrapper\n")
    result, _ = migrate({"train.py": own})
    assert "checkpoints activations itself" in result.decisions[0].message


FABRIC = """\
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy


def main(loader):
    fabric = Fabric(devices=2, strategy=FSDPStrategy())
    fabric.launch()
    model = fabric.setup_module(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer = fabric.setup_optimizers(optimizer)
    for x in loader:
        fabric.backward(model(x).sum())
        optimizer.step()
"""


def test_fabric_is_written() -> None:
    result, after = migrate({"train.py": FABRIC})
    assert [(d.code, d.outcome) for d in result.decisions] == [("FSDP530", Outcome.REWRITTEN)]
    assert "def parallelize(model, device_mesh):" in after["train.py"]
    # Folders are what Fabric's FSDPStrategy saves by default.
    assert "save_distributed_checkpoint=True" in after["train.py"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("devices=2", "devices=2, callbacks=[ema]", "the Fabric has callbacks"),
        ("devices=2", "devices=2, plugins=[ema]", "the Fabric has plugins"),
        ("devices=2", 'devices=2, precision="16-mixed"', "refuses precision 16-mixed"),
        ("optimizer.step()", "torch.save(model.x, 'x')", "calls torch.save"),
        ("optimizer.step()", "model.state_dict()", "calls model.state_dict"),
        ("optimizer.step()", "model.a.grad.norm()", "asks for model.a.grad"),
        ("optimizer.step()", "print(len(list(model.parameters())))", "2 calls ask for parameters"),
        ("optimizer.step()", "fabric.setup(other)", "2 calls are named setup"),
        ("optimizer.step()", "Fabric(devices=2)", "another Fabric or Trainer"),
        ("optimizer.step()", "other.setup(x)", "2 calls are named setup"),
        ("fabric.setup_module", "self.setup_module", "is not known"),
        ("torch.optim.AdamW", "Muon", "element by element"),
        ("fabric.launch()", "fabric.init_module(empty_init=True)", "init_module(empty_init=True)"),
        (
            "    model = fabric.setup_module(torch.nn.Linear(4, 4))\n"
            "    optimizer = torch.optim.AdamW(model.parameters())\n",
            "    model = torch.nn.Linear(4, 4)\n"
            "    optimizer = torch.optim.AdamW(model.parameters())\n"
            "    model = fabric.setup_module(model)\n",
            "made before the model is set up",
        ),
        (
            "    model = fabric.setup_module(torch.nn.Linear(4, 4))\n"
            "    optimizer = torch.optim.AdamW(model.parameters())\n",
            "    model = torch.nn.Linear(4, 4)\n"
            "    optimizer = torch.optim.AdamW(model.parameters())\n"
            "    other = optimizer\n"
            "    model, optimizer = fabric.setup(model, optimizer)\n",
            "setup() is not model, optimizer",
        ),
        ("def main", "parallelize = 1\n\n\ndef main", "something named parallelize"),
    ],
)
def test_fabric_is_left(old: str, new: str, said: str) -> None:
    assert FABRIC.count(old) == 1
    result, after = migrate({"train.py": FABRIC.replace(old, new)})
    (decision,) = result.decisions
    assert (decision.code, decision.outcome) == ("FSDP530", Outcome.LEFT)
    assert said in decision.message, decision.message
    assert "ModelParallelStrategy(" not in after["train.py"].replace("`ModelParallelStrategy(", "")


def test_another_program_beside_it_is_its_own() -> None:
    other = FABRIC.replace("FSDPStrategy()", '"ddp"').replace("optimizer.step()", "x.state_dict()")
    result, _ = migrate({"train.py": FABRIC, "other.py": other})
    assert [d.outcome for d in result.decisions] == [Outcome.REWRITTEN]
    both = FABRIC.replace("import torch\n", "import torch\nfrom other import main as other\n")
    result, _ = migrate({"train.py": both, "other.py": other})
    assert "another Fabric or Trainer" in result.decisions[0].message


@pytest.mark.parametrize("given", ["", "empty_init=False", "empty_init=None"])
def test_a_model_that_is_made_under_fabric(given: str) -> None:
    source = FABRIC.replace(
        "    model = fabric.setup_module(torch.nn.Linear(4, 4))\n",
        f"    with fabric.init_module({given}):\n        model = torch.nn.Linear(4, 4)\n"
        "    model = fabric.setup_module(model)\n",
    )
    result, _ = migrate({"train.py": source})
    assert [d.outcome for d in result.decisions] == [Outcome.REWRITTEN]


def test_what_is_set_up_together_is_set_up_in_turn() -> None:
    """Given both at once, Fabric leaves the optimizer with parameters of no model."""
    source = FABRIC.replace(
        "    model = fabric.setup_module(torch.nn.Linear(4, 4))\n",
        "    model = torch.nn.Linear(4, 4)\n",
    ).replace(
        "    optimizer = fabric.setup_optimizers(optimizer)\n",
        "    model, optimizer = fabric.setup(model, optimizer)\n",
    )
    _, after = migrate({"train.py": source})
    assert (
        "    model = fabric.setup_module(model)\n"
        "    optimizer = torch.optim.AdamW(model.parameters())\n"
        "    optimizer = fabric.setup_optimizers(optimizer)\n"
    ) in after["train.py"]


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


CLI = """\
seed_everything: 7
trainer:
  accelerator: gpu
  devices: 4
  num_nodes: 2
  precision: bf16-mixed
  strategy:
    class_path: lightning.pytorch.strategies.FSDPStrategy
    init_args:
      sharding_strategy: SHARD_GRAD_OP
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("4", "4", "data_parallel_size: 8"),
        ("4", "auto", "<number of processes>"),
        ("SHARD_GRAD_OP", "NO_SHARD", "write strategy: ddp"),
        ("SHARD_GRAD_OP", "HYBRID_SHARD", "over a mesh"),
        ("bf16-mixed", "16-mixed", "write bf16-mixed"),
        ("class_path: lightning.pytorch.strategies.", "class_path: ", "data_parallel_size: 8"),
    ],
)
def test_files_of_lightning_cli_are_left_with_what_to_write(old: str, new: str, said: str) -> None:
    found = write_one(CLI.replace(old, new, 1), "config.yaml", None)
    (setting,) = found.found
    assert (setting.code, setting.outcome) == ("FSDP530", Outcome.LEFT)
    assert said in setting.help, setting
    assert unmarked(found.text) == CLI.replace(old, new, 1)


def test_a_trainer_with_the_name_of_a_strategy_is_left() -> None:
    found = write_one("trainer:\n  strategy: fsdp\n  max_epochs: 3\n", "config.yaml", None)
    assert [(c.code, c.outcome) for c in found.found] == [("FSDP530", Outcome.LEFT)]


@pytest.mark.parametrize(
    "source",
    [
        "trainer:\n  strategy: ddp\n  max_epochs: 3\n",
        "trainer:\n  strategy: fsdp\n  of: another\n",
        "trainer:\n  strategy:\n    class_path: project.FSDPStrategy\n",
        "trainer:\n  strategy:\n    class_path: ModelParallelStrategy\n",
    ],
)
def test_other_trainers_are_no_sites(source: str) -> None:
    assert not write_one(source, "config.yaml", None).found


HYDRA = {
    "a trainer": (
        "trainer:\n  _target_: lightning.Trainer\n  devices: 4\n  strategy:\n"
        "    _target_: lightning.pytorch.strategies.fsdp.FSDPStrategy\n"
        "    state_dict_type: sharded\n    mixed_precision:\n"
        "      _target_: torch.distributed.fsdp.MixedPrecision\n",
        ("_target_: lightning.pytorch.strategies.ModelParallelStrategy with", "mp_policy"),
    ),
    "a group": (
        "_target_: pytorch_lightning.strategies.FSDPStrategy\nauto_wrap_policy:\n  - x.Block\n",
        ("_target_: pytorch_lightning.strategies.ModelParallelStrategy", "auto_wrap_policy"),
    ),
    "a policy that is made of others": (
        "_target_: lightning.pytorch.strategies.FSDPStrategy\nauto_wrap_policy:\n"
        "  _target_: functools.partial\nactivation_checkpointing_policy: [x.Block]\n",
        ("the classes in auto_wrap_policy", "apply_activation_checkpointing"),
    ),
    "Fabric": (
        "strategy:\n  _target_: lightning.fabric.strategies.FSDPStrategy\n  cpu_offload: true\n",
        ("parallelize_fn", "offload_policy=CPUOffloadPolicy()", "checkpoint: True"),
    ),
    "offloading that is made of others": (
        "strategy:\n  _target_: lightning.pytorch.strategies.FSDPStrategy\n  cpu_offload:\n"
        "    _target_: torch.distributed.fsdp.CPUOffload\n",
        ("do without it",),
    ),
}


@pytest.mark.parametrize("name", HYDRA)
def test_files_of_hydra_are_left_with_what_to_write_in_its_form(name: str) -> None:
    source, said = HYDRA[name]
    found = write_one(source, "config.yaml", None)
    (setting,) = found.found
    assert (setting.code, setting.outcome) == ("FSDP530", Outcome.LEFT)
    assert all(text in setting.help for text in said), setting
    assert "init_args" not in setting.help
    assert unmarked(found.text) == source


ELSEWHERE = {
    "a table of strategies": "S = {'fsdp': FSDPStrategy}\nL.Trainer(strategy=S[n]())\n",
    "a subclass": "class Own(FSDPStrategy):\n    pass\n",
    "functools": "import functools\n\nmake = functools.partial(FSDPStrategy, cpu_offload=True)\n",
    "what is given by **": "given = {'strategy': 'fsdp', 'devices': 2}\nL.Trainer(**given)\n",
    "a mapping that a call makes": "given = dict(strategy='fsdp', max_epochs=1)\n",
    "a name before 2.0": "L.Trainer(strategy='fsdp_native', devices=2)\n",
}
HEAD = "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n\n"


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_strategy_that_is_given_elsewhere_is_left_with_what_to_write(name: str) -> None:
    source = f"{HEAD}{ELSEWHERE[name]}"
    result, after = migrate({"train.py": source})
    [decision] = result.decisions
    assert (decision.code, decision.outcome) == ("FSDP530", Outcome.LEFT)
    is_derived = name == "a subclass"
    assert ("derives from Lightning's" in decision.message) is is_derived
    said = "derive it from ModelParallelStrategy" if is_derived else "ModelParallelStrategy with"
    assert said in decision.help
    assert unmarked(after["train.py"]) == source


def test_a_class_of_releases_before_2_is_left() -> None:
    source = (
        "import pytorch_lightning as pl\n"
        "from pytorch_lightning.strategies import DDPFullyShardedNativeStrategy\n\n"
        "pl.Trainer(strategy=DDPFullyShardedNativeStrategy(), devices=2)\n"
    )
    assert [(d.code, d.outcome) for d in migrate({"train.py": source})[0].decisions] == [
        ("FSDP530", Outcome.LEFT)
    ]


@pytest.mark.parametrize(
    "source",
    [
        "def f(strategy: FSDPStrategy) -> FSDPStrategy:\n    return strategy\n",
        "print(isinstance(strategy, FSDPStrategy))\n",
        "given = {'strategy': 'ddp', 'devices': 2}\n",
        "given = {'strategy': 'fsdp', 'of': 'a cache'}\n",
        "given = {'strategy': name, 'devices': 2}\n",
    ],
)
def test_what_gives_lightning_no_strategy_is_no_site(source: str) -> None:
    assert not migrate({"train.py": f"{HEAD}{source}"})[0].decisions
