"""The reason for a project whose models something else wraps."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

SAVE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model: FSDP):
    model.clip_grad_norm_(1.0)
"""
PLUGIN = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
"""
STRATEGY = """\
from lightning.fabric.strategies import FSDPStrategy

strategy = FSDPStrategy()
"""
TRAINER = """\
from transformers import Trainer


class Saving(Trainer):
    def save(self):
        return save(self.model) if self.is_fsdp_enabled else None
"""
ENVIRONMENT = """\
import os

sharded = os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"
"""


@pytest.mark.parametrize(
    ("other", "library"),
    [
        (PLUGIN, "accelerate"),
        (STRATEGY, "Lightning"),
        (TRAINER, "transformers"),
        (ENVIRONMENT, "accelerate"),
    ],
    ids=["plugin", "fabric", "trainer", "environment"],
)
def test_the_library_that_wraps_is_named(other: str, library: str) -> None:
    result, after = migrate({"save.py": SAVE, "run.py": other})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any(d.message.startswith(f"{library} wraps the models") for d in left)
    assert all("path that wraps" not in d.help for d in left)
    assert unmarked(after["run.py"]) == other


def test_without_one_the_path_is_asked_for() -> None:
    result, _ = migrate({"save.py": SAVE})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any(d.help == "give the path that wraps it as well" for d in left)


def test_a_project_that_wraps_itself_names_none() -> None:
    own = f"{SAVE}\n\nmodel = FSDP(net)\n"
    result, after = migrate({"save.py": own, "run.py": PLUGIN, "trainer.py": TRAINER})
    assert "fully_shard(net)" in after["save.py"]
    assert not any("wraps the models" in d.message for d in result.decisions)


def test_settings_of_a_state_that_stays_are_not_said_to_be_values() -> None:
    saving = """\
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(model):
    config = FullStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        return model.state_dict()
"""
    result, _ = migrate({"save.py": saving, "run.py": PLUGIN})
    assert not any("used as a value" in d.message for d in result.decisions)


FRAMEWORKS = {
    "transformers": "def run(args):\n    return transformers.Trainer(args=args)\n",
    "accelerate": "def run():\n    return accelerate.Accelerator()\n",
}


@pytest.mark.parametrize("library", FRAMEWORKS)
def test_what_runs_the_training_names_what_to_write_once(library: str) -> None:
    saving = """\
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(trainer):
    config = FullStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT, config):
        return trainer.model.state_dict()
"""
    run = f"import {library}\n\n\n{FRAMEWORKS[library]}"
    result, after = migrate({"save.py": saving, "run.py": run})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert all(d.message.startswith(f"{library} wraps the models") for d in left)
    assert after["save.py"].count("TODO(fsdp-migrate") == 1
    assert "get_state_dict" in after["save.py"]


POLICY = """\
import functools
import {0}
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


def build(trainer):
    {1}
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: False)
    trainer.accelerator.state.fsdp_plugin.auto_wrap_policy = policy
"""


@pytest.mark.parametrize("library", ["transformers", "accelerate"])
def test_a_policy_that_a_library_is_given(library: str) -> None:
    used = {"transformers": "transformers.Trainer", "accelerate": "accelerate.Accelerator"}[library]
    result, _ = migrate({"run.py": POLICY.format(library, f"print({used})")})
    left = [d for d in result.decisions if d.code == "FSDP102"]
    assert left
    assert all("takes no function as a policy" in d.help for d in left)


HANDED_ON = """\
def needed():
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    return FullyShardedDataParallel, StateDictType


def wrapped(net):
    sharded, _ = needed()
    return sharded(net)


def saved(model):
    sharded, kind = needed()
    with sharded.state_dict_type(model, kind.FULL_STATE_DICT):
        return model.state_dict()
"""
OF_ITS_OWN = """\
from transformers import AutoModelForCausalLM


class OwnTrainer:
    config: "TrainerConfig"
"""


def test_a_class_that_is_handed_on_is_named() -> None:
    result, after = migrate({"needed.py": HANDED_ON, "trainer.py": OF_ITS_OWN})
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    hands = "no model is wrapped by the name of FSDP1's class, which needed.py:4 hands on"
    assert any(d.message.startswith(hands) for d in left)
    assert not any("wraps the models" in d.message for d in left)
    assert unmarked(after["trainer.py"]) == OF_ITS_OWN


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (OF_ITS_OWN, ""),
        ('"""Trainer of transformers\' models."""\n', ""),
        ("import transformers\n\ntrainer = transformers.Trainer(None)\n", "transformers"),
        ("from transformers.trainer import Trainer\n\nTrainer(None)\n", "transformers"),
        ("from trl import SFTTrainer\n\nSFTTrainer(None)\n", "transformers"),
        (
            "    from transformers import Trainer\n".join(("def run():\n", "    Trainer()\n")),
            "transformers",
        ),
    ],
    ids=["own", "words", "attribute", "module", "trl", "inside"],
)
@pytest.mark.parametrize("code", [SAVE, HANDED_ON], ids=["given", "handed on"])
def test_what_runs_the_training_is_of_the_library(code: str, other: str, named: str) -> None:
    result, _ = migrate({"save.py": code, "run.py": other})
    said = [d.message for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any(m.startswith(f"{named} wraps the models") for m in said) == bool(named)


def test_beside_a_model_that_is_wrapped_by_name_nothing_is_said_of_it() -> None:
    result, _ = migrate({"needed.py": HANDED_ON, "own.py": f"{SAVE}\n\nmodel = FSDP(net)\n"})
    assert not any("by the name of FSDP1's class" in d.message for d in result.decisions)
