"""States of modules that hold what others shard beside FSDP's parts, or that name it themselves."""

from __future__ import annotations

import pytest

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes, rewritten

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
HOLDER = """\


class Holder(nn.Module):
    def __init__(self, net, table):
        super().__init__()
        self.net = FSDP(net)
        self.table = table
"""
TABLES = """\
from torch.distributed._shard.sharded_tensor import ShardedTensor


def table_of(shards, metadata):
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata)
"""
GATHERED = "get_model_state_dict("


def of_holder(use: str) -> str:
    return f"{HEAD}{HOLDER}\n\ndef main(net, table):\n    holder = Holder(net, table)\n{use}"


SAVED = '    torch.save(holder.state_dict(), "model.pt")\n'
COPIED = '    state = holder.state_dict()\n    kept = {}\n    torch.save(kept, "model.pt")\n'
FILLED = """\
    kept = {{}}
    for k, v in holder.state_dict().items():
        {}
    torch.save(kept, "model.pt")
"""
RETURNED = "    return holder.state_dict()\n\n\ndef run(net):\n    {}\n"
BACK = "    state = holder.state_dict()\n    holder.load_state_dict(state)\n"


def test_a_state_beside_tables_of_the_projects_own_is_not_gathered() -> None:
    options = Options(partial=True)
    result, after = migrate({"example.py": of_holder(SAVED), "tables.py": TABLES}, options)
    assert GATHERED not in after["example.py"]
    assert "fully_shard(net)" in after["example.py"]
    assert ("FSDP302", Outcome.LEFT) in outcomes(result)
    assert "ShardedTensor" in after["example.py"].partition("def main")[2]


@pytest.mark.parametrize(
    ("use", "stops"),
    [
        (SAVED, True),
        ('    torch.save({"model": holder.state_dict(), "step": 1}, "model.pt")\n', True),
        ('    state = holder.state_dict()\n    torch.save(state, "model.pt")\n', True),
        (
            '    state = {"model": holder.state_dict()}\n    torch.save(state, "model.pt")\n',
            True,
        ),
        (COPIED.format("{k: v for k, v in state.items() if 'net' in k}"), True),
        (COPIED.format("{k: v.detach().cpu() for k, v in state.items()}"), True),
        (COPIED.format("dict((k, v) for k, v in state.items())"), True),
        (COPIED.format("{**state}"), True),
        (COPIED.format("OrderedDict(state)"), True),
        (COPIED.format("{'model': copy.deepcopy(state)}"), True),
        (COPIED.format("list(state.values())"), True),
        (COPIED.format("{k: v.shape for k, v in state.items()}"), False),
        (COPIED.format("{k: v.numel() for k, v in state.items()}"), False),
        (COPIED.format("{k: state[k] for k in state if 'net' in k}"), True),
        (COPIED.format("[state[k].cpu() for k in NAMES]"), True),
        (COPIED.format("list(state.keys())"), False),
        (COPIED.format("sum(v.numel() for v in state.values())"), False),
        (COPIED.format("len(state)"), False),
        (FILLED.format("kept[k] = v"), True),
        (FILLED.format("kept.update({k: v})"), True),
        (FILLED.format("kept.setdefault(k, v)"), True),
        (FILLED.format("print(v)"), False),
        (FILLED.format("kept[k] = v.numel()"), False),
        ("    save(holder.state_dict())\n\n\ndef save(given):\n    torch.save(given, 'm')\n", True),
        ("    show(holder.state_dict())\n\n\ndef show(given):\n    print(given)\n", False),
        (RETURNED.format('torch.save(main(net), "model.pt")'), True),
        (RETURNED.format("print(main(net))"), False),
        ("    return holder.state_dict()\n", False),
        ('    state = holder.state_dict()\n    return state["table"]\n', False),
        ('    torch.save(len(holder.state_dict()), "n.pt")\n', False),
    ],
)
def test_what_is_saved_of_such_a_state_stops(use: str, stops: bool) -> None:
    """A file of this rank's shards alone would be written, without a word."""
    options = Options(partial=True)
    result, after = migrate({"example.py": of_holder(use), "tables.py": TABLES}, options)
    outcome = Outcome.LEFT if stops else Outcome.REVIEW
    assert ("FSDP302", outcome) in outcomes(result)
    assert ("raise NotImplementedError" in after["example.py"]) is stops
    assert "fully_shard(net)" in after["example.py"]


def test_a_state_whose_shards_are_asked_for_is_not_gathered() -> None:
    use = '    return holder.state_dict()["table"].local_shards()\n'
    assert GATHERED not in rewritten(of_holder(use))


def test_tables_of_torchrec_are_not_gathered() -> None:
    source = of_holder(SAVED).replace(
        HEAD, f"{HEAD}from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection\n"
    )
    assert GATHERED not in rewritten(source)


def test_such_a_state_is_loaded_as_it_was_given() -> None:
    result, after = migrate({"example.py": of_holder(BACK), "tables.py": TABLES})
    assert "holder.load_state_dict(state)" in after["example.py"]
    assert ("FSDP303", Outcome.REWRITTEN) in outcomes(result)


def test_a_state_of_what_is_not_sharded_is_loaded_by_torch() -> None:
    use = "    holder.load_state_dict(nn.Linear(4, 4).state_dict())\n"
    _, after = migrate({"example.py": of_holder(use), "tables.py": TABLES})
    assert "holder.load_state_dict(" not in after["example.py"]


def test_the_names_of_such_a_state_are_the_same() -> None:
    use = "    return holder.state_dict().keys()\n"
    result, _ = migrate({"example.py": of_holder(use), "tables.py": TABLES})
    assert {outcome for _, outcome in outcomes(result)} == {Outcome.REWRITTEN}


@pytest.mark.parametrize(
    "tables",
    [
        "",
        "from torch.distributed._shard.sharded_tensor import ShardedTensor\n",  # FSDP1's own
    ],
)
def test_without_such_tables_a_state_is_gathered(tables: str) -> None:
    _, after = migrate({"example.py": of_holder(SAVED), "tables.py": tables})
    assert GATHERED in after["example.py"]


def test_a_sharded_model_is_gathered_beside_tables_too() -> None:
    source = f'{HEAD}\n\ndef main(net):\n    torch.save(FSDP(net).state_dict(), "model.pt")\n'
    _, after = migrate({"example.py": source, "tables.py": TABLES})
    assert GATHERED in after["example.py"]


def test_the_states_of_an_optimizer_beside_tables_are_left() -> None:
    use = """\
    optimizer = torch.optim.Adam(holder.parameters())
    torch.save(FSDP.optim_state_dict(holder, optimizer), "optimizer.pt")
"""
    result, after = migrate({"example.py": of_holder(use), "tables.py": TABLES})
    assert ("FSDP304", Outcome.LEFT) in outcomes(result)
    assert "fully_shard(net)" in after["example.py"]  # it stops there, with an error


NAMING = """\


class Holder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = FSDP(net)

    def state_dict(self):
        return self.net.state_dict()


def main(net):
    holder = Holder(net)
    torch.save(holder.state_dict(), "model.pt")
"""


def test_a_class_that_asks_its_sharded_model_is_asked_as_before() -> None:
    # torch's function would look for the model's names in the holder, and stop.
    after = rewritten(f"{HEAD}{NAMING}")
    assert "return get_model_state_dict(self.net" in after
    assert "torch.save(holder.state_dict()," in after
    assert "TODO" not in after


PARTS = """\


class Model(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = FSDP(net)


class Holder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.inner = Model(net)

    def state_dict(self, destination=None, prefix="", keep_vars=False):
        return self.inner.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)


def main(net):
    holder = Holder(net)
    torch.save(holder.state_dict(), "model.pt")
"""


def test_what_a_class_hands_on_is_handed_on_and_its_state_is_marked() -> None:
    result, after = migrate({"example.py": f"{HEAD}{PARTS}"}, Options(partial=True))
    assert after["example.py"].count("TODO") == 1
    assert "under names of its own" in after["example.py"].partition("def main")[2]
    assert "fully_shard(net)" in after["example.py"]
    left = {code for code, outcome in outcomes(result) if outcome is Outcome.LEFT}
    assert left == {"FSDP302"}


def test_a_class_that_asks_the_class_above_is_gathered() -> None:
    above = """\
        self.net = FSDP(net)

    def state_dict(self, *args, **kwargs):
        return super().state_dict(*args, **kwargs)
"""
    source = f"{HEAD}{PARTS}".replace("        self.net = FSDP(net)\n", above, 1)
    source = source.replace("Holder(net)\n", "Model(net)\n")
    assert GATHERED in rewritten(source)


# -- what tests shard ---------------------------------------------------------------------------

LIBRARY = """\
from torch import nn


class Box(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
"""
TEST = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from library import Box


def test_box(net):
    box = Box(FSDP(net))
    box.state_dict()
"""
PROGRAM = """\
import torch
from library import Box


def main(net):
    torch.save(Box(net).state_dict(), "model.pt")
"""


def test_what_a_test_puts_into_a_class_is_not_met_in_a_program() -> None:
    files = {"library.py": LIBRARY, "test_box.py": TEST, "program.py": PROGRAM}
    _, after = migrate(files)
    assert after["program.py"] == PROGRAM
    assert GATHERED in after["test_box.py"]


@pytest.mark.parametrize(
    "files",
    [
        {"test_box.py": f"import program\n{TEST}"},  # the test runs the program
        {"test_box.py": TEST, "test_both.py": "import program\nimport test_box\n"},
        {"test_box.py": f"import importlib\n{TEST}\n\nimportlib.import_module(NAME)\n"},
        {"conftest.py": TEST},  # pytest hands on what it makes
        {"train.py": TEST},
    ],
)
def test_what_may_be_loaded_together_is_met(files: dict[str, str]) -> None:
    _, after = migrate({"library.py": LIBRARY, "program.py": PROGRAM, **files})
    assert GATHERED in after["program.py"]


TYPED = """\
from torch import nn


class Table(nn.Module):
    pass


class Wide(Table):
    pass


def saved(table: {said}):
    return table.state_dict()
"""
GIVING = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from typed import Table, saved


class Net(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = FSDP(part)
        self.table = Table()


def main(part):
    net = Net(part)
    for module in (net, net.table):
        saved(module)
"""


@pytest.mark.parametrize(("said", "is_met"), [("Table", False), ("nn.Module", True)])
def test_a_parameter_is_of_the_class_that_its_type_says(said: str, is_met: bool) -> None:
    _, after = migrate({"typed.py": TYPED.format(said=said), "example.py": GIVING})
    assert (GATHERED in after["typed.py"]) is is_met


# -- optimizers by names ------------------------------------------------------------------------

NAMED = """\


def main(net, path):
    m = FSDP(net)
    opt = torch.optim.Adam(m.parameters())
    opt.load_state_dict(FSDP.optim_state_dict_to_load(m, opt, torch.load(path){more}))
"""


@pytest.mark.parametrize(
    ("more", "is_left"),
    [(", is_named_optimizer=True", True), (", is_named_optimizer=False", False)],
)
def test_an_optimizer_by_names_has_no_counterpart(more: str, is_left: bool) -> None:
    after = rewritten(f"{HEAD}{NAMED.format(more=more)}")
    assert ("is_named_optimizer=True is for an optimizer" in after) is is_left
    assert ("set_optimizer_state_dict" in after) is not is_left


ORDERED = """\


def load(m, opt, opt_state):
    FSDP(m)
    opt.load_state_dict(FSDP.optim_state_dict_to_load({given}))
"""


@pytest.mark.parametrize("given", ["m, opt, opt_state", "opt_state, m, opt"])
def test_the_state_among_the_arguments_tells_their_order(given: str) -> None:
    source = f"{HEAD}{ORDERED.format(given=given)}"
    assert "set_optimizer_state_dict( m, opt, separate_steps(opt_state)" in " ".join(
        rewritten(source).split()
    )
