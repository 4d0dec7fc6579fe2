"""Models that are wrapped with the settings of accelerate's plugin, and code for its version 1."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
DICTIONARY = """

def prepare(model, accelerator):
    fsdp_plugin = accelerator.state.fsdp_plugin
    kwargs = {
        "sharding_strategy": fsdp_plugin.sharding_strategy or fsdp_plugin.reshard_after_forward,
        "mixed_precision": fsdp_plugin.mixed_precision_policy,
        "device_id": accelerator.device,
    }
    return FSDP(model, **kwargs)
"""
WRITTEN = """

def prepare(model, accelerator):
    plugin = 1
    return FSDP(model, sharding_strategy=accelerator.state.fsdp_plugin.sharding_strategy)
"""
OWN = """

def prepare(model, cfg):
    return FSDP(model, sharding_strategy=cfg.plugin.sharding_strategy)
"""
# As trl hands its weights to another process: one way for each version.
SYNC = """

class Trainer:
    def sync_fsdp1(self, module):
        for child in module.children():
            self.sync_fsdp1(child)
        if isinstance(module, FSDP):
            with FSDP.summon_full_params(module, recurse=False, writeback=False):
                for name, param in module.named_parameters():
                    self.send(name.replace("_fsdp_wrapped_module.", ""), param.data)

    def sync(self):
        if self.fsdp_version == 1:
            self.sync_fsdp1(self.model)
        elif self.fsdp_version == 2:
            self.sync_fsdp2(self.model)
"""


@pytest.mark.parametrize("wrapping", [DICTIONARY, WRITTEN])
def test_whose_settings_are_the_plugins_is_left(wrapping: str) -> None:
    source = HEAD + wrapping + SYNC
    result, after = migrate({"run.py": source})
    assert unmarked(after["run.py"]) == source
    said = [d.message for d in result.decisions if d.code == "FSDP101"]
    assert said == ["accelerate's plugin gives its settings, and with them the version"]
    assert all(d.outcome is Outcome.LEFT for d in result.decisions)
    assert not any("FSDPModule" in text for text in after.values())


def test_beside_others_it_holds_back_what_may_be_its_model() -> None:
    source = f"{HEAD}{DICTIONARY}\n\ndef own(net):\n    return FSDP(net)\n"
    result, after = migrate({"run.py": source})
    assert "FSDP(model, **kwargs)" in after["run.py"]
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert any("accelerate's plugin gives its settings" in d.message for d in left)


def test_settings_of_the_projects_own_are_read() -> None:
    _, after = migrate({"run.py": HEAD + OWN})
    assert "FSDP(" not in unmarked(after["run.py"])


def test_version_1_by_a_setting_stays_where_a_library_wraps() -> None:
    source = HEAD + DICTIONARY + SYNC
    result, after = migrate({"run.py": source})
    said = [d for d in result.decisions if "for version 1 alone" in d.message]
    assert {d.code for d in said} == {"FSDP404", "FSDP306", "FSDP406"}
    assert {d.message for d in said} == {
        "it is for version 1 alone, as self.fsdp_version == 1 says"
    }
    # Nothing is to be done there, and so nothing is marked.
    below = after["run.py"][after["run.py"].index("class Trainer") :]
    assert "TODO(" not in below


UNDER = """

def gather(self, model):
    {condition}
        with FSDP.summon_full_params(model):
            model.generate()
"""
ALONE = {
    "if self.fsdp_version == 1:",
    "if plugin.fsdp_version != 2:",
    "if self.is_fsdp and self.fsdp_version == 1:",
    "if self.fsdp_version == 2:\n        pass\n    else:",
    "if self.fsdp_version != 1:\n        pass\n    else:",
}
EITHER = {
    "if self.fsdp_version == 2:",
    "if self.is_fsdp:",
    "if self.is_fsdp or self.fsdp_version == 1:",
    "if self.fsdp_version != 1:",
    "if self.fsdp_version >= 1:",
    "if self.fsdp_version == 1:\n        pass\n    else:",
    "if fsdp_version(model) == 1:",
    "if self.version == 1:",
}


@pytest.mark.parametrize("condition", sorted(ALONE | EITHER))
def test_conditions_on_the_version(condition: str) -> None:
    result, _ = migrate({"run.py": HEAD + DICTIONARY + UNDER.format(condition=condition)})
    said = [d.message for d in result.decisions if d.code == "FSDP306"]
    assert said
    assert all(("for version 1 alone" in m) == (condition in ALONE) for m in said)


def test_a_function_that_is_called_elsewhere_too_is_not_for_version_1_alone() -> None:
    source = (
        f"{HEAD}{DICTIONARY}{SYNC}\n    def other(self):\n        self.sync_fsdp1(self.model)\n"
    )
    result, _ = migrate({"run.py": source})
    assert not any("for version 1 alone" in d.message for d in result.decisions)


def test_a_setting_of_the_projects_own_chooses_what_is_migrated() -> None:
    own = """

def prepare(model, cfg):
    if cfg.fsdp_version == 1:
        model = FSDP(model)
    return model
"""
    _, after = migrate({"run.py": HEAD + own})
    assert "fully_shard(model)" in after["run.py"]
    assert "FSDP(" not in after["run.py"]


@pytest.mark.parametrize(
    ("plugin", "stays"),
    [
        ("class FullyShardedDataParallelPlugin:\n    sharding_strategy = None\n", False),
        ("from accelerate import FullyShardedDataParallelPlugin\n", True),
        ("class Plugin:\n    sharding_strategy = None\n", True),
    ],
)
def test_accelerate_itself_says_which_version_it_is(plugin: str, *, stays: bool) -> None:
    sources = {"run.py": HEAD + WRITTEN, "plugins.py": plugin}
    result, _ = migrate(sources)
    wrapped = [d.outcome for d in result.decisions if d.code == "FSDP101"]
    assert (wrapped == [Outcome.LEFT]) == stays
