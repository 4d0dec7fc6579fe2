"""Code that takes wrappers off by their classes goes on for the other wrappers only."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, unmarked

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


"""
TAIL = """\


def main(net):
    model = FSDP(net)
    return unwrap(model)
"""

# Each with what stands there in the end.
FORMS = {
    "an if that returns": (
        """\
def unwrap(m):
    if isinstance(m, FSDP):
        return unwrap(m.module)
    return m
""",
        "def unwrap(m):\n    return m\n",
    ),
    "others": (
        """\
def unwrap(m, keep=False):
    if isinstance(m, (DDP, FSDP)):
        return unwrap(m=m.module, keep=keep)
    elif keep:
        return None
    return m
""",
        """\
def unwrap(m, keep=False):
    if isinstance(m, DDP):
        return unwrap(m=m.module, keep=keep)
    elif keep:
        return None
    return m
""",
    ),
    "a union": (
        """\
def unwrap(m):
    while isinstance(m, FSDP | DDP):
        m = m.module
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, DDP):
        m = m.module
    return m
""",
    ),
    "either": (
        """\
def unwrap(m):
    if isinstance(m, FSDP) or isinstance(m, DDP):
        return unwrap(m.module)
    return m
""",
        """\
def unwrap(m):
    if isinstance(m, DDP):
        return unwrap(m.module)
    return m
""",
    ),
    "an expression": (
        """\
def unwrap(m):
    return unwrap(m._fsdp_wrapped_module) if isinstance(m, FSDP) else m
""",
        "def unwrap(m):\n    return m\n",
    ),
    "a negated expression": (
        "unwrap = lambda m: m if not isinstance(m, FSDP) else unwrap(m.module)\n",
        "unwrap = lambda m: m\n",
    ),
    "what returns early": (
        """\
def unwrap(m):
    if not isinstance(m, FSDP):
        return m
    inner = m.module
    return unwrap(inner)
""",
        "def unwrap(m):\n    return m\n",
    ),
    "what returns early for others too": (
        """\
def unwrap(m):
    if not isinstance(m, (FSDP, DDP)):
        return m
    return unwrap(m.module)
""",
        """\
def unwrap(m):
    if not isinstance(m, DDP):
        return m
    return unwrap(m.module)
""",
    ),
    "a part of a chain": (
        """\
def unwrap(m, depth=0):
    if isinstance(m, DDP):
        return unwrap(m.module, depth + 1)
    elif isinstance(m, FSDP) and depth < 9:
        return unwrap(m.module, depth + 1)
    else:
        return m
""",
        """\
def unwrap(m, depth=0):
    if isinstance(m, DDP):
        return unwrap(m.module, depth + 1)
    else:
        return m
""",
    ),
    "two functions": (
        """\
def unwrap(m):
    if isinstance(m, FSDP):
        return further(m.module)
    return m


def further(model):
    return unwrap(model)
""",
        """\
def unwrap(m):
    return m


def further(model):
    return unwrap(model)
""",
    ),
    "a method": (
        """\
class Keeper:
    def unwrap(self, m):
        if isinstance(m, FSDP):
            return self.unwrap(m.module)
        return m


unwrap = Keeper().unwrap
""",
        """\
class Keeper:
    def unwrap(self, m):
        return m


unwrap = Keeper().unwrap
""",
    ),
    "an attribute": (
        """\
class Keeper:
    def __init__(self, model):
        self.model = model

    def strip(self):
        if isinstance(self.model, FSDP):
            self.model = self.model.module
            return self.strip()
        return self.model


def unwrap(m):
    return Keeper(m).strip()
""",
        """\
class Keeper:
    def __init__(self, model):
        self.model = model

    def strip(self):
        return self.model


def unwrap(m):
    return Keeper(m).strip()
""",
    ),
    "a loop that is left": (
        """\
def unwrap(m):
    while True:
        if isinstance(m, (FSDP, DDP)):
            m = m.module
            continue
        return m
""",
        """\
def unwrap(m):
    while True:
        if isinstance(m, DDP):
            m = m.module
            continue
        return m
""",
    ),
    "a tuple of classes": (
        """\
WRAPPERS = (FSDP, DDP)


def unwrap(m):
    if isinstance(m, WRAPPERS):
        return unwrap(m.module)
    return m
""",
        """\
WRAPPERS = (DDP,)


def unwrap(m):
    if isinstance(m, WRAPPERS):
        return unwrap(m.module)
    return m
""",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_takes_wrappers_off_goes_on_for_others(form: str) -> None:
    before, wanted = FORMS[form]
    result, after = migrate({"train.py": HEAD + before + TAIL})
    assert not result.problems
    found = after["train.py"].split("\n\n\n", 1)[1].split("\n\n\ndef main")[0]
    assert found.strip() == wanted.strip()


# Wrappers of the project's own beside them, with an arm for each.
OWN = """\


class Own(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.own = m


"""
ARMS = {
    "one question each, an arm for every class": (
        """\
def unwrap(m):
    while (
        isinstance(m, Own)
        or isinstance(m, DDP)
        or isinstance(m, FSDP)
    ):
        if isinstance(m, Own):
            m = m.own
        elif isinstance(m, FSDP):
            m = m._fsdp_wrapped_module
        else:
            m = m.module
    return m
""",
        """\
def unwrap(m):
    while (
        isinstance(m, Own)
        or isinstance(m, DDP)
    ):
        if isinstance(m, Own):
            m = m.own
        else:
            m = m.module
    return m
""",
    ),
    "its arm comes first": (
        """\
def unwrap(m):
    while isinstance(m, FSDP) or isinstance(m, Own):
        if isinstance(m, FSDP):
            m = m._fsdp_wrapped_module
        else:
            m = m.own
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, Own):
        m = m.own
    return m
""",
    ),
    "an else for what the tuple has besides": (
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP, FSDP)):
        if isinstance(m, Own):
            m = m.own
        else:
            m = m.module
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP)):
        if isinstance(m, Own):
            m = m.own
        else:
            m = m.module
    return m
""",
    ),
    "a chain in an endless loop": (
        """\
def unwrap(m):
    while True:
        if isinstance(m, Own):
            m = m.own
        elif isinstance(m, FSDP):
            m = m.module
        elif isinstance(m, DDP):
            m = m.module
        else:
            break
    return m
""",
        """\
def unwrap(m):
    while True:
        if isinstance(m, Own):
            m = m.own
        elif isinstance(m, DDP):
            m = m.module
        else:
            break
    return m
""",
    ),
    "a chain that returns": (
        """\
def unwrap(m):
    while True:
        if isinstance(m, Own):
            m = m.own
        elif isinstance(m, (DDP, FSDP)):
            m = m.module
        else:
            return m
""",
        """\
def unwrap(m):
    while True:
        if isinstance(m, Own):
            m = m.own
        elif isinstance(m, DDP):
            m = m.module
        else:
            return m
""",
    ),
    "a question in a question": (
        """\
def unwrap(m):
    while True:
        if isinstance(m, (Own, FSDP)):
            if isinstance(m, FSDP):
                m = m._fsdp_wrapped_module
            else:
                m = m.own
        else:
            break
    return m
""",
        """\
def unwrap(m):
    while True:
        if isinstance(m, Own):
            m = m.own
        else:
            break
    return m
""",
    ),
    "a choice in the arm": (
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP, FSDP)):
        m = m.own if isinstance(m, Own) else m.module
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP)):
        m = m.own if isinstance(m, Own) else m.module
    return m
""",
    ),
    "attributes are asked for in the arm": (
        """\
def unwrap(m):
    while isinstance(m, (Own, FSDP, DDP)):
        if hasattr(m, "_fsdp_wrapped_module"):
            m = m._fsdp_wrapped_module
        elif hasattr(m, "own"):
            m = m.own
        else:
            m = m.module
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP)):
        if hasattr(m, "_fsdp_wrapped_module"):
            m = m._fsdp_wrapped_module
        elif hasattr(m, "own"):
            m = m.own
        else:
            m = m.module
    return m
""",
    ),
    "a chain of recursion": (
        """\
def unwrap(m):
    if isinstance(m, Own):
        return unwrap(m.own)
    elif isinstance(m, FSDP):
        return unwrap(m._fsdp_wrapped_module)
    elif isinstance(m, DDP):
        return unwrap(m.module)
    return m
""",
        """\
def unwrap(m):
    if isinstance(m, Own):
        return unwrap(m.own)
    elif isinstance(m, DDP):
        return unwrap(m.module)
    return m
""",
    ),
    "recursion in a question in a question": (
        """\
def unwrap(m):
    if isinstance(m, (Own, FSDP)):
        if isinstance(m, FSDP):
            return unwrap(m._fsdp_wrapped_module)
        return unwrap(m.own)
    return m
""",
        """\
def unwrap(m):
    if isinstance(m, Own):
        return unwrap(m.own)
    return m
""",
    ),
    "nothing else is asked for": (
        """\
def unwrap(m):
    while isinstance(m, FSDP):
        if hasattr(m, "_fsdp_wrapped_module"):
            m = m._fsdp_wrapped_module
        else:
            m = m.module
    return m
""",
        """\
def unwrap(m):
    return m
""",
    ),
    "what leaves the loop": (
        """\
def unwrap(m):
    while True:
        if not isinstance(m, (DDP, FSDP, Own)):
            break
        if isinstance(m, Own):
            m = m.own
        else:
            m = m.module
    return m
""",
        """\
def unwrap(m):
    while True:
        if not isinstance(m, (DDP, Own)):
            break
        if isinstance(m, Own):
            m = m.own
        else:
            m = m.module
    return m
""",
    ),
    "an arm that returns": (
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP, FSDP)):
        if isinstance(m, FSDP):
            return m._fsdp_wrapped_module
        m = m.own if isinstance(m, Own) else m.module
    return m
""",
        """\
def unwrap(m):
    while isinstance(m, (Own, DDP, FSDPModule)):
        if isinstance(m, FSDPModule):
            return m
        m = m.own if isinstance(m, Own) else m.module
    return m
""",
    ),
}


@pytest.mark.parametrize("form", ARMS)
def test_an_arm_for_fsdp_goes_and_others_stay(form: str) -> None:
    before, wanted = ARMS[form]
    head = HEAD.replace("\n\n\n", "\nfrom torch import nn") + OWN
    result, after = migrate({"train.py": head + before + TAIL})
    assert not result.problems
    found = after["train.py"].split("def unwrap")[1].split("\n\n\ndef main")[0]
    assert f"def unwrap{found}".strip() == wanted.strip()
    assert "fully_shard(net)" in after["train.py"]


KEPT = {
    "it is asked first": """\
def unwrap(m):
    if hasattr(m, "module"):
        return unwrap(m.module)
    return m
""",
    "it is tried": """\
def unwrap(m):
    try:
        return unwrap(m.module)
    except AttributeError:
        return m
""",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_what_ends_by_itself_stays(body: str) -> None:
    _, after = migrate({"train.py": HEAD + body + TAIL})
    assert body in after["train.py"]
    assert "fully_shard(net)" in after["train.py"]


ON = {
    "another function": """\
def unwrap(m):
    if isinstance(m, FSDP):
        return export({m})
    return m


def export(m):
    return m
""",
    "the children of what is inside": """\
def unwrap(m):
    if isinstance(m, FSDP):
        return export({m})
    return m


def export(m):
    for child in m.children():
        unwrap(child)
    return m
""",
    "a part of what is inside": """\
def unwrap(m):
    if isinstance(m, FSDP):
        return unwrap({m}.layers)
    return m
""",
    "another's function of the same name": """\
def unwrap(m):
    if isinstance(m, FSDP):
        return library.unwrap({m})
    return m
""",
}


@pytest.mark.parametrize("body", ON.values(), ids=ON)
def test_what_goes_on_elsewhere_gets_the_model(body: str) -> None:
    _, after = migrate({"train.py": HEAD + body.replace("{m}", "m.module") + TAIL})
    wanted = body.replace("{m}", "m").replace("FSDP", "FSDPModule")
    assert wanted in after["train.py"]


LEFT = {
    "more is done": """\
def unwrap(m):
    if isinstance(m, FSDP):
        print(type(m))
        return unwrap(m.module)
    return m
""",
    "a loop asks, and more is done": """\
def unwrap(m):
    while True:
        if isinstance(m, FSDP):
            print(type(m))
            m = m.module
        else:
            return m
""",
    "more is done in one arm": """\
def unwrap(m):
    while isinstance(m, (DDP, FSDP)):
        if isinstance(m, FSDP):
            print(type(m))
            m = m._fsdp_wrapped_module
        else:
            m = m.module
    return m
""",
    "the arms are counted": """\
def unwrap(m, depth=0):
    while isinstance(m, (DDP, FSDP)):
        depth += 1
        if isinstance(m, FSDP):
            m = m._fsdp_wrapped_module
        else:
            m = m.module
    return m, depth
""",
    "what tells the arms is not understood": """\
def unwrap(m, deep=True):
    while isinstance(m, (DDP, FSDP)):
        if deep:
            m = m.module
        else:
            m = m.module.module
    return m
""",
    "nothing is asked that is understood": """\
def unwrap(m):
    if "Sharded" in str(type(m)):
        return unwrap(m.module)
    return m
""",
    "a pattern asks": """\
def unwrap(m):
    match m:
        case FSDP() | DDP():
            return unwrap(m.module)
    return m
""",
    "a function asks in a loop": """\
def is_sharded(m):
    return isinstance(m, FSDP)


def unwrap(m):
    while is_sharded(m):
        m = m.module
    return m
""",
    "it goes on behind it": """\
def unwrap(m):
    if isinstance(m, FSDP):
        yield from unwrap(m.module)
    yield m
""",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_would_not_end_holds_the_model_back(body: str) -> None:
    result, after = migrate({"train.py": HEAD + body + TAIL})
    assert unmarked(after["train.py"]) == HEAD + body + TAIL
    assert any("would not end" in d.message for d in result.decisions)


WALK = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Layer(nn.Module):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = FSDP(Layer())


def layers(module):
    found = []
    for child in module.children():
        if {asked}:
            found.append(child)
        else:
            {otherwise}
    return found


def main():
    return layers(Net())
"""


def test_a_walk_that_went_into_wrappers_asks_units_as_what_was_inside() -> None:
    source = WALK.format(asked="isinstance(child, Layer)", otherwise="found += layers(child)")
    _, after = migrate({"train.py": source})
    assert "if isinstance(child, Layer):" in after["train.py"]
    assert "fully_shard(Layer())" in after["train.py"]


def test_a_walk_that_goes_no_deeper_keeps_its_answer() -> None:
    source = WALK.format(asked="isinstance(child, Layer)", otherwise="print(child)")
    _, after = migrate({"train.py": source})
    assert "isinstance(child, Layer) and not isinstance(child, FSDPModule)" in after["train.py"]
