"""Lists and dictionaries that units fill: FSDP2 gives them copies, where FSDP1 gave their own."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Log:
    def __init__(self):
        self.kept = []

    def append(self, x):
        self.kept.append(x)


def note(found, x):
    found.append(x)


class Block(nn.Module):
    def forward(self, x, given{annotation}):
        {body}
        return {returned}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        {root}
        given = {made}
        for block in self.blocks:
            x = block(x, given)
        return x


model = FSDP(Net(){policy})
"""
POLICY = ", auto_wrap_policy=ModuleWrapPolicy({Block})"


def marked(
    body: str,
    *,
    made: str = "[]",
    annotation: str = "",
    returned: str = "x",
    root: str = "pass",
    policy: str = POLICY,
) -> bool:
    result, after = migrate(
        {
            "train.py": PROGRAM.format(
                body=body,
                made=made,
                annotation=annotation,
                returned=returned,
                root=root,
                policy=policy,
            )
        }
    )
    assert not result.problems
    said = [d for d in result.decisions if d.code == "FSDP421"]
    assert len(said) <= 1
    assert bool(said) == ("FSDP421" in after["train.py"])
    return bool(said)


@pytest.mark.parametrize(
    ("body", "made", "annotation"),
    [
        ("given.append(x)", "[]", ""),
        ("given.extend([x, x])", "x.shared", ": list"),
        ("note(given, x)", "[]", ""),
        ("note(found=given, x=x)", "[]", ""),
        ("given['x'] = x", "{}", ""),
        ("given[id(self)] = x", "{}", ": dict"),
        ("given[0] = x", "self.made()", ": dict[int, nn.Module]"),
        ("given.update(x=x)", "{}", ": dict | None"),
        ("given.setdefault('x', x)", "self.made()", ""),
        ("given.append(x); given.append(x)", "[]", ""),
        ("given += [x]", "[]", ""),
        ("same = given; same.append(x)", "[]", ""),
        ("given.append(x)", "[]", ": list[nn.Module] | None"),
        ("given[0] = x", "[None]", ""),
        ("given[self.place] = x", "{}", ""),
        ("given['seen'].append(x)", "{'seen': []}", ""),
        ("given.get('seen').append(x)", "self.made()", ""),
        ("given['seen'] += [x]", "self.made()", ": dict"),
        ("given[0]['x'] = x", "[{}]", ""),
        ("seen = given['seen']; seen.append(x)", "{'seen': []}", ""),
        ("for seen in given.values(): seen.append(x)", "{'seen': []}", ""),
    ],
)
def test_what_a_unit_fills_is_marked(body: str, made: str, annotation: str) -> None:
    assert marked(body, made=made, annotation=annotation)


@pytest.mark.parametrize(
    ("body", "made", "annotation"),
    [
        ("given.append(x)", "Log()", ": Log"),  # an object is handed on as it is
        ("given[0] = x", "x.clone()", ""),  # a tensor
        ("given.add_(x)", "x.clone()", ""),
        ("given.update(x)", "self.cache", ""),
        ("given = list(given); given.append(x)", "[]", ""),  # a list of its own
        ("x = x + len(given)", "[]", ""),
        ("given += x", "x.clone()", ""),
        ("given['x'][0] = x", "{}", ""),  # a tensor in it
        ("given['x'].add_(x)", "{}", ": dict"),
        ("given['x'].add(x)", "{}", ": dict"),
        ("seen = list(given['seen']); seen.append(x)", "{'seen': []}", ""),
        ("seen = []; seen.append(given['x'])", "{}", ""),
        ("given[0] = x", "(None,)", ""),
        ("given = given + [x]; given.append(x)", "[]", ""),
    ],
)
def test_what_is_no_list_of_the_callers_is_not(body: str, made: str, annotation: str) -> None:
    assert not marked(body, made=made, annotation=annotation)


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("x, *given", "given[0].append(x)"),
        ("x, **given", "given['seen'].append(x)"),
        ("x, *, given=None", "given.append(x)"),
    ],
)
def test_what_it_is_given_by_a_star_or_a_name_is(signature: str, body: str) -> None:
    source = PROGRAM.replace("x, given{annotation}", signature)
    filled = source.format(body=body, returned="x", root="pass", made="[]", policy=POLICY)
    _, after = migrate({"train.py": filled})
    assert "FSDP421" in after["train.py"]


def test_nor_what_it_gives_back() -> None:
    assert not marked("given.append(x)", returned="x, given")


def test_nor_what_a_root_is_given() -> None:
    """FSDP1 made a copy of that as well."""
    assert not marked("given.append(x)", policy="")
