"""Support functions are written for the calls that are made of them, and mean the same."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_migrate.planning import support_library as library
from fsdp_migrate.planning.specialization import specialize
from tests.helpers.migrating import migrate

# A library in small: everything that is specialized stands in it somewhere.
SMALL = '''
HAS_ODD = True


def entry(xs, low=None, high=None, names=(), deep=False, kind="plain"):
    """Count.

    Args:
        xs: what is counted.
        low: the least that counts.
        high: the most.
        names: more to count,
            each for one.

    Raises:
        ValueError: there is nothing between.
    """
    if low is not None and high is not None and low > high:
        raise ValueError("nothing between")
    found = [x for x in xs if (low is None or x >= low) and (high is None or x <= high)]
    extra = (*(names or ()),)
    total = len(found)
    for name in extra:
        total += _weight(name, deep=deep)

    # How it is told.
    label = kind if kind != "plain" else _label(low)
    odd = [x for x in found if HAS_ODD and x % 2]
    if odd:
        total -= 1
    elif deep:
        total += 10
    else:
        total += 100
    settings = {"low": low, **({"high": high} if high is not None else {})}

    def told(value):
        if low is None:
            return value
        return value, low

    return label, told(total), sorted(settings), apply(_each, xs)


def apply(function, xs):
    """Call something with two things."""
    return function(xs, None)


def _weight(name, *, deep):
    """What a name counts for."""
    if not deep:
        return 1
    return len(name) if HAS_ODD else 2


def _each(xs, unused=None):
    """A function that is handed on keeps its parameters."""
    return [x for x in xs if unused is None]


def _label(low):
    """The label of a least value."""
    if low is None:
        return None
    return f"from {low}"


class Holder:
    """Has what an odd program needs."""

    if HAS_ODD:
        odd: bool = True
    size: int = 3


def other(x, y=None):
    """Something that nobody else calls."""
    return entry([x], low=y)
'''
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "low": (None, 2),
    "high": (None, 1, 5),
    "names": ((), ("a", "bcd")),
    "deep": (False, True),
    "kind": ("plain", "other"),
}


def run(texts: dict[str, str]) -> dict[str, Any]:
    names: dict[str, Any] = {"HAS_ODD": True}
    exec("\n\n\n".join(texts.values()), names)
    return names


def outcome(function: Callable[..., object], kwargs: dict[str, Any]) -> object:
    try:
        return function([1, 2, 3, 4], **kwargs)
    except ValueError as error:
        return str(error)


def subsets() -> Iterator[tuple[str, ...]]:
    for size in range(len(ARGUMENTS) + 1):
        yield from itertools.combinations(ARGUMENTS, size)


@pytest.mark.parametrize("passed", list(subsets()), ids="-".join)
def test_it_answers_as_the_whole_function_does(passed: tuple[str, ...]) -> None:
    names: dict[str, Any] = {}
    exec(SMALL, names)
    special = run(specialize(SMALL, {"entry": {"xs", *passed}}))
    for values in itertools.product(*(ARGUMENTS[name] for name in passed)):
        kwargs = dict(zip(passed, values, strict=True))
        assert outcome(special["entry"], kwargs) == outcome(names["entry"], kwargs)


def test_what_is_passed_by_nobody_is_gone() -> None:
    texts = specialize(SMALL, {"entry": {"xs"}})
    assert list(texts) == ["entry", "apply", "_each"]
    assert "def _each(xs, unused=None):" in texts["_each"]
    text = texts["entry"]
    assert text.startswith("def entry(xs):")
    assert "Raises" not in text
    assert "low is" not in text
    assert "each for one" not in text
    assert "total += 100" in text


def test_functions_that_are_still_called_stay() -> None:
    texts = specialize(SMALL, {"entry": {"xs", "names", "deep"}})
    assert "_weight" in texts
    assert "_label" not in texts
    assert "deep" in texts["_weight"]
    texts = specialize(SMALL, {"entry": {"xs", "names"}})
    assert "_weight" not in texts or "deep" not in texts["_weight"]


def test_what_the_program_lacks_is_gone() -> None:
    texts = specialize(SMALL, {"entry": {"xs", "names", "deep"}, "Holder": None}, {"HAS_ODD"})
    assert "HAS_ODD" not in "".join(texts.values())
    assert "odd:" not in "".join(texts.values())
    assert "len(name)" not in texts["_weight"]
    assert "size: int = 3" in texts["Holder"]
    whole = specialize(SMALL, {"Holder": None})["Holder"]
    assert "    odd: bool = True\n    size" in whole


CHOOSING = """
HAS_DEFAULT = True


def entry(x, kind):
    used = kind or "plain" if HAS_DEFAULT else kind
    changed = kind + "s" if HAS_DEFAULT else x
    x += 1
    return x, used, changed
"""


def test_a_second_name_of_a_parameter_is_gone() -> None:
    """Not where the parameter is given another value."""
    text = specialize(CHOOSING, {"entry": None}, {"HAS_DEFAULT"})["entry"]
    assert "    changed = x\n    x += 1\n    return x, kind, changed" in text
    assert "used = " not in text
    assert "used = " in specialize(CHOOSING, {"entry": None})["entry"]


def test_open_calls_keep_every_parameter() -> None:
    text = specialize(SMALL, {"entry": None})["entry"]
    source = next(n for n in ast.parse(SMALL).body if getattr(n, "name", "") == "entry")
    assert text.split("\n")[0] == SMALL.split("\n")[source.lineno - 1]
    assert "odd = [x for x in found if x % 2]" in text


def public() -> list[str]:
    return [name for name in library.definitions() if not name.startswith("_")]


def parameters(name: str) -> tuple[set[str], set[str]]:
    """All and the required parameters of a support function."""
    node = library.definitions()[name]
    if isinstance(node, ast.ClassDef):
        return set(), set()
    given = node.args
    listed = [p.arg for p in given.args]
    needed = set(listed[: len(listed) - len(given.defaults)])
    defaults = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed |= {p.arg for p, default in defaults if default is None}
    return {*listed, *(p.arg for p in given.kwonlyargs)}, needed


def test_whole_functions_are_the_librarys_own() -> None:
    texts = {name: library.text_of(name) for name in library.definitions()}
    written = library.written(dict.fromkeys(public())).decode()
    for name, text in texts.items():
        if not library.facts() & {n.id for n in ast.walk(ast.parse(text)) if hasattr(n, "id")}:
            assert text in written or name == "_sharded_state"


@st.composite
def needs(draw: st.DrawFn) -> tuple[dict[str, set[str] | None], frozenset[str]]:
    names = draw(st.sets(st.sampled_from(public()), min_size=1, max_size=3))
    if draw(st.booleans()):
        names.add("shard")
    entries: dict[str, set[str] | None] = {}
    for name in sorted(names):
        every, needed = parameters(name)
        chosen = draw(st.sets(st.sampled_from(sorted(every)))) if every else set()
        entries[name] = needed | chosen if every and draw(st.integers(0, 9)) else None
    return entries, draw(st.frozensets(st.sampled_from(sorted(library.facts()))))


def test_whatever_is_written_is_clean(tmp_path: Path) -> None:
    """No name is unknown or unused, no line too long, and no fact is left in it."""

    @given(needs())
    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    def write(drawn: tuple[dict[str, set[str] | None], frozenset[str]]) -> None:
        text = library.written(*drawn).decode()
        assert "HAS_" not in text
        (tmp_path / f"f{len(list(tmp_path.iterdir()))}.py").write_text(text)

    write()
    select = ["--isolated", "--select=F,E501,E1,E3,W", "--preview", "--line-length=100"]
    command = [sys.executable, "-m", "ruff", "check", *select, "--ignore=E704", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-3000:]


# -- in a project ---------------------------------------------------------------------------------

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"


def support(files: dict[str, str]) -> str:
    _, after = migrate(files)
    return next(text for name, text in after.items() if name.startswith("fsdp2_support"))


def arguments_of_shard(text: str) -> list[str]:
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "shard")
    assert isinstance(node, ast.FunctionDef)
    return [p.arg for p in (*node.args.args, *node.args.kwonlyargs)]


def call(given: str, name: str = "f") -> str:
    return f"{HEAD}def {name}(net, policy, group, **more):\n    return FSDP(net, {given})\n"


UNREAD = "auto_wrap_policy=make(policy), param_init_fn=more['init']"


def test_shard_has_the_arguments_that_calls_pass() -> None:
    found = arguments_of_shard(support({"a.py": call(UNREAD)}))
    assert found == ["module", "auto_wrap_policy", "param_init_fn"]


def test_files_share_what_any_of_them_passes() -> None:
    second = call(f"{UNREAD}, sync_module_states=True", "g")
    found = arguments_of_shard(support({"a.py": call(UNREAD), "b.py": second}))
    assert found == ["module", "auto_wrap_policy", "param_init_fn", "sync_module_states"]


@pytest.mark.parametrize(
    "more",
    [
        "\n\nwrap = FSDP\n\n\ndef h(net, **kwargs):\n    return wrap(net, **kwargs)\n",
        "\n\ndef h(net, **kwargs):\n    return FSDP(net, **kwargs)\n",
        "\n\nimport functools\n\nmade = functools.partial(FSDP, sync_module_states=True)\n",
    ],
)
def test_who_may_pass_anything_gets_everything(more: str) -> None:
    found = arguments_of_shard(support({"a.py": call(UNREAD) + more}))
    assert {"process_group", "ignored_modules", "device_mesh"} <= set(found)


def test_another_file_may_call_it_by_a_name_of_this_one() -> None:
    first = call(UNREAD)
    second = (
        "from a import FSDP\n\n\ndef g(net, init):\n"
        "    return FSDP(net, sync_module_states=True, param_init_fn=init)\n"
    )
    assert "sync_module_states" in arguments_of_shard(support({"a.py": first, "b.py": second}))


def test_what_a_marker_suggests_can_be_passed() -> None:
    text = call(f"{UNREAD}, mixed_precision=more['precision']")
    text += (
        "\n\ndef h(net, blocks):\n    net.part = f(net.part, None, None)\n    return f(net, 0, 0)\n"
    )
    _, after = migrate({"a.py": text})
    assert "is_root=False" in after["a.py"]
    assert "is_root" in arguments_of_shard(
        next(text for name, text in after.items() if name.startswith("fsdp2_support"))
    )


def test_obsolete_arguments_are_not_passed_on() -> None:
    text = call(f"{UNREAD}, limit_all_gathers=True, forward_prefetch=False")
    _, after = migrate({"a.py": text})
    assert "limit_all_gathers" not in after["a.py"]
    assert "forward_prefetch" not in after["a.py"]


def test_an_obsolete_argument_that_calls_something_stays() -> None:
    _, after = migrate({"a.py": call(f"{UNREAD}, limit_all_gathers=more.pop('limit')")})
    assert "limit_all_gathers=more.pop('limit')" in after["a.py"]


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("class Blocks(nn.ModuleList):\n    def forward(self, x):\n        return x\n", "[called]"),
        ("def init(m):\n    m.to('meta')\n", "_materialize"),
        (
            "from torch.distributed.fsdp.wrap import CustomPolicy\n\np = CustomPolicy(f)\n",
            "_run_policy",
        ),
    ],
)
def test_what_the_program_has_is_answered_for(extra: str, code: str) -> None:
    plain = call("**more").replace("\n\n\n", "\nfrom torch import nn\n\n\n", 1)
    assert code not in support({"a.py": plain})
    assert code in support({"a.py": f"{plain}\n\n{extra}"})
