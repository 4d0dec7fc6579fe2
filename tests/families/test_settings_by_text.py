"""Settings of a module that executed text may change (nanoGPT's configurator) are not known."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import argparse

from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

{before}offload = False
{after}

def main(model):
    return FSDP(model, cpu_offload=CPUOffload(offload_params=offload))
"""
CHOSEN = "CPUOffloadPolicy() if offload else OffloadPolicy()"


@pytest.mark.parametrize(
    "after",
    [
        "exec(open('configurator.py').read())",
        "for text in ('a', 'b'):\n    exec(text)",
        "exec(open('configurator.py').read(), globals())",
        "exec('offload = True')",
        "globals().update(vars(argparse.ArgumentParser().parse_args()))",
        "for key in ('offload',):\n    globals()[key] = True",
        "def configure(settings):\n    globals().update(settings)\n",
    ],
)
def test_what_text_may_set_is_asked_at_run_time(after: str) -> None:
    _, files = migrate({"train.py": PROGRAM.format(before="", after=after)})
    assert CHOSEN in files["train.py"]


def test_settings_of_another_module_are_too() -> None:
    program = PROGRAM.replace("{before}offload = False\n{after}", "from settings import offload")
    settings = "offload = False\nexec(open('configurator.py').read())\n"
    _, files = migrate({"train.py": program, "settings.py": settings})
    assert CHOSEN in files["train.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("", "exec('seed = 1')"),
        ("", "seed = eval('offload')"),
        ("", "exec(open('other.py').read(), {})"),
        ("", "print(globals())"),
        ("", "print(globals()['offload'])"),
        ("", "database.exec(open('tables.sql').read())"),
        ("exec(open('configurator.py').read())\n", ""),
        ("", "config = {key: globals()[key] for key in ('offload',)}"),
    ],
)
def test_what_nothing_sets_is_known(before: str, after: str) -> None:
    _, files = migrate({"train.py": PROGRAM.format(before=before, after=after)})
    assert "return fully_shard(model)" in files["train.py"]
