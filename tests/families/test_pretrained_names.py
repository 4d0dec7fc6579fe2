"""What ``save_pretrained`` writes names the model's class, which ``fully_shard`` makes another."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
SAID = "save_pretrained writes the class's name"


@pytest.mark.parametrize(
    "save",
    [
        "model.save_pretrained(path, state_dict=state)",
        "model.module.save_pretrained(path, state_dict=state)",
        "inner = model.module\ninner.save_pretrained(path, state_dict=state)",
        "inner = model.module if hasattr(model, 'module') else model\n"
        "inner.save_pretrained(path, state_dict=state)",
        "def save(inner):\n    inner.save_pretrained(path, state_dict=state)\n\n\n"
        "save(model.module)",
    ],
)
def test_the_name_is_said_where_a_model_is_saved(save: str) -> None:
    result, after = migrate({"example.py": f"{HEAD}{save}\n"})
    assert worst(result) is Outcome.REVIEW
    assert after["example.py"].count(SAID) == 1


@pytest.mark.parametrize(
    "save",
    [
        "tokenizer.save_pretrained(path)",
        "model.config.save_pretrained(path)",
        "model.module.config.save_pretrained(path)",
        "net.save_pretrained(path, state_dict=state)",
    ],
)
def test_it_is_not_said_of_other_things(save: str) -> None:
    source = f"{HEAD}{save}\n"
    if save.startswith("net."):
        source = HEAD.replace("\nmodel", f"\n{save}\nmodel")
    _, after = migrate({"example.py": source})
    assert SAID not in after["example.py"]
