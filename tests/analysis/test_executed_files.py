"""Files that a program executes in its own names: what they name, and what they may set."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP


exec(open("configurator.py").read())
model = FSDP(net)
"""
CONFIGURATOR = """\
import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        exec(open(arg).read())
    else:
        key, value = arg[2:].split("=")
        if key in globals():
            assert type(literal_eval(value)) == type(globals()[key])
            globals()[key] = literal_eval(value)
"""
READS = {
    "read_text": 'from pathlib import Path\nexec(Path("configurator.py").read_text())',
    "a compiled one": 'exec(compile(open("configurator.py").read(), "c", "exec"))',
}


def import_of(files: dict[str, str]) -> Outcome:
    result, _ = migrate(files)
    found = [d for d in result.decisions if str(d.site.construct) == "import(CPUOffload)"]
    return found[0].outcome


def test_an_import_goes_that_the_executed_file_does_not_name() -> None:
    files = {"train.py": HEAD, "configurator.py": "batch = 12\nCPU = 'CPUOffloads'\n"}
    assert import_of(files) is Outcome.REWRITTEN


def test_an_import_goes_that_no_file_of_settings_names() -> None:
    files = {"train.py": HEAD, "configurator.py": CONFIGURATOR, "config/a.py": "batch = 12\n"}
    assert import_of(files) is Outcome.REWRITTEN


@pytest.mark.parametrize("way", READS)
def test_other_ways_to_read_it(way: str) -> None:
    source = HEAD.replace('exec(open("configurator.py").read())', READS[way])
    assert import_of({"train.py": source, "configurator.py": "batch = 1\n"}) is Outcome.REWRITTEN


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        ("isinstance(v, (int, float, bool, str))", Outcome.REWRITTEN),
        ("isinstance(v, str) and not k.startswith('_')", Outcome.REWRITTEN),
        ("not k.startswith('_')", Outcome.LEFT),
        ("isinstance(v, (int, type))", Outcome.LEFT),
        ("isinstance(k, str)", Outcome.LEFT),
    ],
)
def test_settings_are_what_has_a_plain_value(kept: str, outcome: Outcome) -> None:
    """nanoGPT's: no class is one of them."""
    exec_ = 'exec(open("configurator.py").read())'
    keys = f"keys = [k for k, v in globals().items() if {kept}]"
    source = HEAD.replace(exec_, f"{keys}\n{exec_}\nconfig = {{k: globals()[k] for k in keys}}")
    assert import_of({"train.py": source, "configurator.py": CONFIGURATOR}) is outcome


@pytest.mark.parametrize(
    "files",
    [
        {},  # it is not there
        {"configurator.py": "offload = CPUOffload(True)\n"},
        {"configurator.py": CONFIGURATOR, "config/a.py": "offload = CPUOffload(True)\n"},
        {"configurator.py": "value = eval(input())\n"},
        {"configurator.py": "import sys\nvalue = globals()[sys.argv[1]]\n"},
        {"configurator.py": "for name in list(globals()):\n    print(name)\n"},
    ],
    ids=["absent", "named", "in a file of settings", "eval", "by a key", "all"],
)
def test_an_import_stays_that_the_executed_file_may_name(files: dict[str, str]) -> None:
    assert import_of({"train.py": HEAD, **files}) is Outcome.LEFT


SETTING = """\
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

offload = False
exec(open("configurator.py").read())
model = FSDP(net, cpu_offload=CPUOffload(offload_params=offload))
"""


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("batch = 12\n", True),
        ("print('offload')\n", True),
        ("offload = True\n", False),
        ("from other import offload\n", False),
        (CONFIGURATOR, False),
        ("globals().update(settings)\n", False),
    ],
)
def test_what_the_executed_file_may_set(text: str, is_known: bool) -> None:
    _, after = migrate({"train.py": SETTING, "configurator.py": text})
    assert ("if offload else" not in after["train.py"]) is is_known
