"""Guards: where they stand, where none can, and that they stay what they are."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.planning.rule import Example
from fsdp_migrate.report import summary
from fsdp_migrate.rewriting import check
from fsdp_migrate.syntax import guards, name_table_builder
from tests.helpers.commandline import Command
from tests.helpers.migrating import REGISTRY, migrate, without_support

PARTIAL = Options(partial=True)
HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


"""
REASON = "FSDP.state_dict is FSDP1's own, whatever model it is given"
COMMENT = f"# TODO(fsdp-migrate FSDP499): {REASON}. Call state_dict on the model, and run again.\n"


def partially(source: str, **files: str) -> tuple[Result, str]:
    """A run with ``--partial``, after which neither kind of run changes anything."""
    given = {"example.py": source, **{f"{n}.py": t for n, t in files.items()}}
    result, after = migrate(given, PARTIAL)
    assert not result.problems
    for name, text in after.items():
        compile(text, name, "exec")
    for options in (PARTIAL, None):
        again, same = migrate(after, options)
        assert not again.changes
        assert same == after
        assert again.count(Outcome.LEFT) == len(again.decisions)
    return result, after["example.py"]


def guarded(body: str) -> str:
    """``body``, indented once and with ``RAISE`` for the guard's lines, as part of a result."""
    lines = []
    for line in body.splitlines():
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare == "RAISE":
            lines += [
                f"{indent}raise NotImplementedError(",
                f'{indent}    "fsdp-migrate FSDP499: {REASON}"',
                f"{indent})",
            ]
        elif bare == "MARK":
            lines.append(indent + COMMENT.rstrip())
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


STANDING = {
    "an assignment": (
        """\
    # what was learned
    state = FSDP.state_dict(model)
    return state
""",
        """\
    MARK
    # what was learned
    RAISE
    state = FSDP.state_dict(model)
    return state
""",
    ),
    "one line": (
        """\
    if rank == 0: torch.save(FSDP.state_dict(model), "x")
    return rank
""",
        """\
    if rank == 0:
        MARK
        RAISE
        torch.save(FSDP.state_dict(model), "x")
    return rank
""",
    ),
    "after a semicolon": (
        """\
    first = 1; second = FSDP.state_dict(model)
""",
        """\
    first = 1
    MARK
    RAISE
    second = FSDP.state_dict(model)
""",
    ),
    "an else, a comment above": (
        """\
    if rank == 0:
        pass
    else:
        # others
        return FSDP.state_dict(model)
""",
        """\
    if rank == 0:
        pass
    else:
        MARK
        # others
        RAISE
        return FSDP.state_dict(model)
""",
    ),
    "what an if asks": (
        """\
    if len(FSDP.state_dict(model)) > 3:
        return 1
""",
        """\
    MARK
    RAISE
    if len(FSDP.state_dict(model)) > 3:
        return 1
""",
    ),
    "what an elif asks": (
        """\
    if rank == 0:
        return 1
    elif FSDP.state_dict(model):
        return 2
""",
        """\
    MARK
    if not (rank == 0):
        RAISE
    if rank == 0:
        return 1
    elif FSDP.state_dict(model):
        return 2
""",
    ),
    "a conditional expression": (
        """\
    state = FSDP.state_dict(model) if rank == 0 else None
    return state
""",
        """\
    MARK
    if rank == 0:
        RAISE
    state = FSDP.state_dict(model) if rank == 0 else None
    return state
""",
    ),
    "behind and": (
        """\
    return rank == 0 and model.training and FSDP.state_dict(model)
""",
        """\
    MARK
    if rank == 0 and model.training:
        RAISE
    return rank == 0 and model.training and FSDP.state_dict(model)
""",
    ),
    "what a loop goes over": (
        """\
    for key in FSDP.state_dict(model):
        print(key)
""",
        """\
    MARK
    RAISE
    for key in FSDP.state_dict(model):
        print(key)
""",
    ),
    "what a while asks": (
        """\
    while FSDP.state_dict(model):
        pass
""",
        """\
    MARK
    RAISE
    while FSDP.state_dict(model):
        pass
""",
    ),
    "a comprehension": (
        """\
    return [FSDP.state_dict(model) for _ in range(2)]
""",
        """\
    MARK
    RAISE
    return [FSDP.state_dict(model) for _ in range(2)]
""",
    ),
    "a default": (
        """\
    def later(state=FSDP.state_dict(model)):
        return state
    return later
""",
        """\
    MARK
    RAISE
    def later(state=FSDP.state_dict(model)):
        return state
    return later
""",
    ),
    "a function inside": (
        """\
    def later():
        return FSDP.state_dict(model)
    return later
""",
        """\
    def later():
        MARK
        RAISE
        return FSDP.state_dict(model)
    return later
""",
    ),
    "a case": (
        """\
    match rank:
        case 0: return FSDP.state_dict(model)
        case 1:
            return FSDP.state_dict(model)
""",
        """\
    match rank:
        case 0:
            MARK
            RAISE
            return FSDP.state_dict(model)
        case 1:
            MARK
            RAISE
            return FSDP.state_dict(model)
""",
    ),
    "twice in a statement": (
        """\
    return FSDP.state_dict(model), FSDP.state_dict(model)
""",
        """\
    MARK
    RAISE
    return FSDP.state_dict(model), FSDP.state_dict(model)
""",
    ),
    "in a try that catches something else": (
        """\
    try:
        return FSDP.state_dict(model)
    except (OSError, torch.cuda.OutOfMemoryError) as error:
        print(error)
""",
        """\
    try:
        MARK
        RAISE
        return FSDP.state_dict(model)
    except (OSError, torch.cuda.OutOfMemoryError) as error:
        print(error)
""",
    ),
    "in a try that raises again": (
        """\
    try:
        return FSDP.state_dict(model)
    except Exception as error:
        print(error)
        raise
""",
        """\
    try:
        MARK
        RAISE
        return FSDP.state_dict(model)
    except Exception as error:
        print(error)
        raise
""",
    ),
    "in a handler": (
        """\
    try:
        model(1)
    except Exception:
        return FSDP.state_dict(model)
""",
        """\
    try:
        model(1)
    except Exception:
        MARK
        RAISE
        return FSDP.state_dict(model)
""",
    ),
}


@pytest.mark.parametrize("where", STANDING)
def test_a_guard_stands_where_the_site_would_run(where: str) -> None:
    before, after = STANDING[where]
    start = "def save(net, rank):\n    model = FSDP(net)\n"
    result, text = partially(HEAD + start + before)
    joined = re.sub(r"\n *#     ", " ", text)  # markers, on one line each
    assert joined.partition("def save")[2] == (
        "(net, rank):\n    model = fully_shard(net)\n" + guarded(after)
    )
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert all(d.guarded for d in left)


NOWHERE = {
    "a lambda": "    return lambda: FSDP.state_dict(model)\n",
    "a generator": "    return (FSDP.state_dict(model) for _ in range(2))\n",
    "a filtered comprehension": "    return [FSDP.state_dict(model) for r in range(2) if r]\n",
    "a condition that cannot be asked twice": (
        "    return FSDP.state_dict(model) if next(rank) else None\n"
    ),
    "a condition assigned on the way": (
        "    return (r := rank + 1) and r and FSDP.state_dict(model)\n"
    ),
    "some rounds of a loop": "    while rank and FSDP.state_dict(model):\n        rank -= 1\n",
    "the guard of a case": (
        "    match rank:\n        case 0 if FSDP.state_dict(model):\n            return 1\n"
    ),
    "a chain of comparisons": "    return 0 < rank < len(FSDP.state_dict(model))\n",
}


@pytest.mark.parametrize("where", NOWHERE)
def test_where_no_guard_can_stand_the_model_stays(where: str) -> None:
    source = HEAD + "def save(net, rank):\n    model = FSDP(net)\n" + NOWHERE[where]
    _, plain = migrate({"example.py": source})
    result, text = partially(source)
    assert text == plain["example.py"]
    assert "NotImplementedError" not in text
    assert "model = FSDP(net)" in text
    assert any(d.guard.problem for d in result.decisions)


EXITS = "    os._exit(1)\n"
CAUGHT = {
    "a try that catches everything": (
        "    try:\n        return FSDP.state_dict(model)\n    except:\n        return None\n"
    ),
    "a try that catches it among others": (
        "    try:\n        return FSDP.state_dict(model)\n"
        "    except (OSError, BaseException) as error:\n        print(error)\n"
    ),
    "a finally that leaves": (
        "    try:\n        state = FSDP.state_dict(model)\n    finally:\n        return None\n"
    ),
    "suppress": (
        "    with contextlib.suppress(Exception):\n        return FSDP.state_dict(model)\n"
    ),
}


def _leaves_the_process(text: str) -> None:
    """What is left is behind a guard that no handler and no thread makes go on."""
    assert "model = fully_shard(net)" in text
    assert EXITS in text
    assert f'"fsdp-migrate FSDP499: {REASON}"' in text
    assert "file=sys.stderr" in text
    imported = {
        a.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import) for a in n.names
    }
    assert {"os", "sys"} <= imported


@pytest.mark.parametrize("where", CAUGHT)
def test_where_every_error_is_caught_a_guard_leaves_the_process(where: str) -> None:
    source = HEAD + "def save(net, rank):\n    model = FSDP(net)\n" + CAUGHT[where]
    result, text = partially(source)
    _leaves_the_process(text)
    assert not any(d.guard.problem for d in result.decisions)


SAFE = """\
def safe(function):
    def wrapped(*args):
        try:
            return function(*args)
        except BaseException as error:
            print(error)

    return wrapped

"""
SAVE = "def save(net):\n    model = FSDP(net)\n    return FSDP.state_dict(model)\n"


@pytest.mark.parametrize(
    "caller",
    [
        "try:\n    save(net)\nexcept BaseException:\n    pass\n",
        "try:\n    save(net)\nexcept SystemExit:\n    pass\nexcept Exception:\n    pass\n",
        "def run(net):\n    save(net)\n\n\ntry:\n    run(net)\nexcept:\n    pass\n",
        "threading.Thread(target=save, args=(net,)).start()\n",
        "executor.submit(save, net)\n",
        "def run(net):\n    each(lambda: save(net))\n\n\ntry:\n    run(net)\nexcept:\n    pass\n",
        "@contextmanager\ndef tolerant():\n    try:\n        yield\n"
        "    except BaseException as error:\n        print(error)\n\n\n"
        "with tolerant():\n    save(net)\n",
        "class Tolerant:\n    def __exit__(self, *error):\n        return True\n\n\n"
        "with Tolerant():\n    save(net)\n",
        "class Saver:\n    def __init__(self, net):\n        save(net)\n\n\n"
        "class Other(Saver):\n    pass\n\n\n"
        "try:\n    Other(net)\nexcept:\n    pass\n",
        "class Net:\n    def forward(self, x):\n        return save(x)\n\n\n"
        "try:\n    Net()(1)\nexcept BaseException as error:\n"
        "    if 'memory' not in str(error):\n        raise\n",
        "class Net:\n    def forward(self, x):\n        return save(x)\n\n\n"
        "try:\n    import example\nexcept:\n    pass\n",
        "class Net:\n    def forward(self, x):\n        return save(x)\n\n\n"
        "try:\n    import apex\n    apex.run()\nexcept:\n    pass\n",
        "class Saver:\n    def __init__(self, net):\n        save(net)\n\n\n"
        "saver: object = Saver\n\n\ntry:\n    saver(net)\nexcept:\n    pass\n",
        "ANY = (RuntimeError, SystemExit)\n\n\ntry:\n    save(net)\nexcept ANY:\n    pass\n",
        "Error = BaseException\n\n\ntry:\n    save(net)\nexcept Error:\n    pass\n",
        f"{SAFE}\n\n@safe\ndef run(net):\n    save(net)\n\n\nrun(net)\n",
        f"{SAFE}\n\nsafe(save)(net)\n",
        f"{SAFE}\n\nsafe(lambda: save(net))()\n",
        f'{SAFE}\n\nCOMMANDS = {{"save": save}}\nCOMMANDS["save"](net)\n',
    ],
    ids=[
        "caught",
        "caught as either",
        "caught further out",
        "a thread",
        "an executor",
        "through a lambda",
        "a context of the project's",
        "a context by its class",
        "a subclass",
        "a method that nobody names",
        "a method that an import of the project's may run",
        "a method that runs behind an import",
        "a class under another name",
        "a name for several errors",
        "another name of an error",
        "a decorator",
        "a function that is given it",
        "a function that is given a lambda",
        "a table of functions",
    ],
)
def test_where_an_error_stops_nothing_a_guard_leaves_the_process(caller: str) -> None:
    _, text = partially(HEAD + SAVE + "\n\n" + caller)
    _leaves_the_process(text)
    other = "from example import save\n\n" + caller
    _, text = partially(HEAD + SAVE, other=other)
    _leaves_the_process(text)


@pytest.mark.parametrize(
    "caller",
    [
        "try:\n    save(net)\nexcept Exception:\n    pass\n",
        "def run(net):\n    save(net)\n\n\ntry:\n    run(net)\nexcept RuntimeError:\n    pass\n",
        "@contextmanager\ndef tolerant():\n    try:\n        yield\n"
        "    except Exception as error:\n        print(error)\n\n\n"
        "with tolerant():\n    save(net)\n",
        "class Net:\n    def forward(self, x):\n        return save(x)\n\n\n"
        "try:\n    Net()(1)\nexcept RuntimeError as error:\n    print(error)\n",
    ],
    ids=["caught", "caught further out", "a context", "a method that nobody names"],
)
def test_where_errors_are_caught_a_guard_leaves_the_program(caller: str) -> None:
    """``except Exception`` catches no SystemExit."""
    _, text = partially(HEAD + SAVE + "\n\n" + caller)
    assert "model = fully_shard(net)" in text
    assert "    raise SystemExit(" in text
    assert "NotImplementedError" not in text
    again, same = partially(text)
    assert same == text
    assert all(d.guarded for d in again.decisions if d.outcome is Outcome.LEFT)


@pytest.mark.parametrize(
    "caller",
    [
        "try:\n    save(net)\nexcept KeyboardInterrupt:\n    pass\n",
        "try:\n    save(net)\nexcept Exception as error:\n    log(error)\n    sys.exit(1)\n",
        "try:\n    torch.save(net)\nexcept Exception:\n    pass\n",
        f"{SAFE}\n\n@safe\ndef other(net):\n    print(net)\n\n\nsave(net)\n",
        f"{SAFE}\n\nprint(safe(print), save(net))\n",
        "class Net:\n    def forward(self, x):\n        return save(x)\n\n\n"
        "try:\n    import apex\n    from torch import fx\n    FOUND = True\n"
        "except:\n    FOUND = False\n",
        "class Saver:\n    def __init__(self, net):\n        save(net)\n\n\n"
        "def other(saver: Saver, x):\n    return isinstance(x, (Saver, int))\n\n\n"
        "try:\n    other(None, 1)\nexcept:\n    pass\n\n\nsaver: Saver = Saver(net)\n",
    ],
    ids=[
        "something else",
        "and exits",
        "a function of torch",
        "another function",
        "beside it",
        "an import of others",
        "a class that is asked for",
    ],
)
def test_an_error_that_is_heard_is_one(caller: str) -> None:
    _, text = partially(HEAD + SAVE + "\n\n" + caller)
    assert "model = fully_shard(net)" in text
    assert "NotImplementedError" in text


PATCHED = "FSDP._auto_wrap = custom\n"


def test_no_import_fails_for_a_guard() -> None:
    library = HEAD + PATCHED + "\n\ndef build(net):\n    return FSDP(net)\n"
    _, text = partially(library)
    assert "NotImplementedError" not in text
    assert "return FSDP(net)" in text


@pytest.mark.parametrize(
    "source",
    [
        PATCHED + "model = FSDP(net)\n",
        'def build(net):\n    return FSDP(net)\n\n\nif __name__ == "__main__":\n    ' + PATCHED,
        "def build(net):\n    " + PATCHED + "    return FSDP(net)\n",
    ],
    ids=["a script", "under main", "in a function"],
)
def test_what_runs_with_the_program_has_one(source: str) -> None:
    _, text = partially(HEAD + source)
    raised, patched = text.index("raise NotImplementedError"), text.index("FSDP._auto_wrap =")
    assert raised < patched
    assert "fully_shard(net)" in text


def test_a_left_constructor_keeps_its_model() -> None:
    source = HEAD + (
        "def save(net, **settings):\n"
        "    model = FSDP(net, shard=True)\n"
        "    return FSDP.state_dict(model)\n"
    )
    _, plain = migrate({"example.py": source})
    _, text = partially(source)
    assert text == plain["example.py"]


def test_models_that_wait_for_one_another_are_told_apart_from_others() -> None:
    source = HEAD + (
        "def one(net):\n    model = FSDP(net)\n    return FSDP.state_dict(model)\n\n\n"
        "def two(net):\n    model = FSDP(net)\n    return lambda: FSDP.state_dict(model)\n"
    )
    _, text = partially(source)
    first, second = text.split("def two")
    assert "fully_shard(net)" in first
    assert "NotImplementedError" in first
    assert "model = FSDP(net)" in second
    assert "NotImplementedError" not in second


def test_what_is_migrated_already_gets_no_guard() -> None:
    source = HEAD + "def step(net):\n    model = FSDP(net)\n    return model.clip_grad_norm_(1.0)\n"
    assert partially(source)[1] == migrate({"example.py": source})[1]["example.py"]


def test_markers_of_an_earlier_run_are_not_doubled() -> None:
    _, first = migrate({"example.py": HEAD + SAVE})
    assert COMMENT.split(":", maxsplit=1)[0] in first["example.py"]
    _, text = partially(first["example.py"])
    assert text == partially(HEAD + SAVE)[1]
    assert text.count("TODO") == 1


def test_a_site_that_is_none_any_more_counts_by_its_guard() -> None:
    source = HEAD + (
        "def save(net):\n"
        "    model = FSDP(net)\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        get = model.state_dict\n"
        "    return get()\n"
    )
    _, text = partially(source)
    assert "FSDP(" not in text
    result, _ = migrate({"example.py": text})
    assert [(d.code, d.outcome, str(d.site.construct)) for d in result.decisions] == [
        ("FSDP302", Outcome.LEFT, "guard")
    ]


def test_without_its_guard_a_site_is_decided_again() -> None:
    _, text = partially(HEAD + SAVE)
    by_hand = text.replace("FSDP.state_dict(model)", "model.state_dict()")
    kept = [line for line in by_hand.splitlines(keepends=True) if "TODO" not in line]
    tree = ast.parse("".join(kept))
    removed = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and guards.read(s)]
    assert len(removed) == 1
    lines = "".join(kept).splitlines(keepends=True)
    assert removed[0].end_lineno is not None
    del lines[removed[0].lineno - 1 : removed[0].end_lineno]
    result, _ = migrate({"example.py": "".join(lines)})
    assert not any(str(d.site.construct) == "guard" for d in result.decisions)


@pytest.mark.parametrize(
    "text",
    [
        "raise NotImplementedError",
        "raise NotImplementedError('fsdp-migrate')",
        "raise RuntimeError('fsdp-migrate FSDP101: no')",
        "if x:\n    raise NotImplementedError('fsdp-migrate FSDP101: no')\nelse:\n    pass",
        "if x:\n    print(1)\n    raise NotImplementedError('fsdp-migrate FSDP101: no')",
        "os._exit(1)",
        "print('fsdp-migrate FSDP101: no')",
        "print('fsdp-migrate FSDP101: no')\nraise NotImplementedError",
        "print('FSDP101: no')\nos._exit(1)",
        "print('fsdp-migrate FSDP101: no')\nf()\nos._exit(1)",
        "if x:\n    f()\n    print('fsdp-migrate FSDP101: no')\n    os._exit(1)",
    ],
)
def test_what_only_looks_like_a_guard(text: str) -> None:
    tree = ast.parse(text)
    assert not any(guard.statement in tree.body for guard in guards.within(tree))


BEFORE_A_FLAG = """\
def train(net, kind, steps, watch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch(optimizer)
    {flag}
        net = FSDP(net, use_orig_params=True)
    for step in range(steps):
        net(step).backward()
        optimizer.step()
"""
STOPS = "raise NotImplementedError("
FLAGS = {
    "a flag": ("if kind:", f"    if kind:\n        {STOPS}"),
    "a comparison": ("if kind == 1:", f"    if kind == 1:\n        {STOPS}"),
    "an attribute": ("if kind.fsdp:", f"    if kind.fsdp:\n        {STOPS}"),
    "another branch": (
        "if kind.ddp:\n        net = kind.wrap(net)\n    else:",
        f"    if not kind.ddp:\n        {STOPS}",
    ),
    "a chain": (
        "if kind == 1:\n        net = kind.wrap(net)\n    elif steps or kind:",
        f"    if kind != 1 and (steps or kind):\n        {STOPS}",
    ),
    "a flag that is set first": ("kind = kind.fsdp\n    if kind:", f"    {STOPS}"),
    "an attribute that is set first": ("kind.fsdp = 1\n    if kind.fsdp:", f"    {STOPS}"),
    "a call": ("if kind():", f"    {STOPS}"),
    "no condition": ("if True or kind:", f"    {STOPS}"),
    "a loop": ("for kind in steps:", f"    {STOPS}"),
}


@pytest.mark.parametrize(("flag", "guard"), FLAGS.values(), ids=FLAGS)
def test_in_front_of_the_sharding_its_flag_is_asked(flag: str, guard: str) -> None:
    """Where nothing is sharded, an optimizer that is built early stops no program."""
    _, after = partially(HEAD + BEFORE_A_FLAG.format(flag=flag))
    assert guard in after.split("def train")[1].split("optimizer = ")[0]


IN_ANOTHER = """\
def wrap(model, settings, count):
    if settings.kind == "none":
        return model
    {inside}
    if not count:
        return model
    return FSDP(model, use_orig_params=True)


def train(net, args, steps, watch):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch(optimizer)
    if args.distributed:
        net = wrap(net, args.parallel, {given})
    for step in range(steps):
        net(step).backward()
        optimizer.step()
"""
ASKED_IN = {
    "a parameter": ("pass", "args.count", " and args.count"),
    "a parameter that is bound anew": ("count = len(count)", "args.count", ""),
    "a call": ("pass", "args.count()", ""),
}


@pytest.mark.parametrize(("inside", "given", "count"), ASKED_IN.values(), ids=ASKED_IN)
def test_the_flag_of_a_function_is_asked_by_its_caller(inside: str, given: str, count: str) -> None:
    """What cannot be asked there is left out: the program stops rather than trains wrongly."""
    _, after = partially(HEAD + IN_ANOTHER.format(inside=inside, given=given))
    asked = f"    if args.distributed and args.parallel.kind != 'none'{count}:\n        {STOPS}"
    assert asked in after.split("def train")[1].split("optimizer = ")[0]


EITHER = """\
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, fsdp):
    if fsdp:
        model = FSDP(net)
    else:
        model = DDP(net)
    return model.state_dict(keep_vars=True)
"""


@pytest.mark.parametrize(
    "given", [EITHER, "import re\n\nNAME = re.compile('x')\n" + EITHER], ids=["plain", "a pattern"]
)
def test_an_object_that_may_be_another_is_asked(given: str) -> None:
    """The way of DDP goes on; another compiler than torch's compiles no model."""
    _, after = partially(HEAD + given)
    assert "    if isinstance(model, FSDPModule):\n        raise NotImplementedError(" in after


@pytest.mark.parametrize(
    "given",
    [
        EITHER.replace("DDP(net)", "FSDP(net)"),
        EITHER.replace("    return", "    model = torch.compile(model)\n    return"),
        EITHER.replace("DDP(net)", "other(net)"),
        EITHER.replace("model.state_dict(", "(model or net).state_dict("),
    ],
    ids=["it is always sharded", "it is compiled", "nobody knows", "no name"],
)
def test_where_asking_would_not_tell_the_guard_has_no_condition(given: str) -> None:
    _, after = partially(HEAD + given)
    assert "\n    raise NotImplementedError(" in after
    assert "isinstance" not in after


OFFLOAD = """\
def offload(module):
    for param in module.parameters():
        if hasattr(param, "_local_shard"):
            param._local_shard = param._local_shard.to("cpu")
        param.data = param.data.to("cpu")


def build(net):
    return FSDP(net)
"""


def test_a_parameter_is_asked_whether_it_is_a_sharded_tensor() -> None:
    """No parameter is an FSDPModule: a guard that asks for one would never raise."""
    _, after = partially(HEAD + OFFLOAD)
    assert "        if isinstance(param, DTensor):\n            raise NotImplementedError(" in after
    assert "FSDPModule" not in after


EARLY = """\
from torch import nn, optim

def build():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = optim.SGD(net[0].parameters(), lr=0.1)
    optimizer.add_param_group({"params": net[1].parameters()})
    return FSDP(net), optimizer
"""
GROUPS = """\
import torch

def train(net):
    model = FSDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.data = p.data.half()
"""


OWN = """\
class Shim:
    def __init__(self, net):
        self.net = net

    def save_pretrained(self, folder):
        torch.save(self.net, folder)


def save(model, folder):
    model.save_pretrained(folder)


def run(net, folder, other):
    model = {made}
    save(model, folder)
    save(Shim(net), folder)
    save({other}, folder)
"""


@pytest.mark.parametrize("other", ["other.module", "other"])
def test_what_only_modules_have_is_asked_of_what_is_inside(other: str) -> None:
    _, after = partially(HEAD + OWN.format(made="torch.compile(FSDP(net))", other=other))
    asked = 'if any(isinstance(m, FSDPModule) for m in getattr(model, "modules", list)()):\n'
    assert f"{asked}        raise NotImplementedError(" in after


@pytest.mark.parametrize("given", [EARLY, GROUPS], ids=["sharded later", "an optimizer"])
def test_what_is_no_model_is_not_asked_whether_it_is_sharded(given: str) -> None:
    """No part of a model that is sharded later is, nor is an optimizer: the guard never raised."""
    _, after = partially(HEAD + given)
    assert "raise NotImplementedError(" in after
    assert "isinstance" not in after


@pytest.mark.parametrize("error", [*sorted(guards.ERRORS), guards.EXIT])
@pytest.mark.parametrize("reason", ['it\'s a "quote"\\', "many words " * 20 + "in lines"])
@pytest.mark.parametrize("under", ["", "if model:\n"])
def test_what_is_said_of_a_guard_is_read_again(error: str, reason: str, under: str) -> None:
    text = guards.text("FSDP101", reason, error)
    text = under + textwrap.indent(text, "    ") if under else text
    tree = ast.parse(text)
    found = [guard for guard in guards.within(tree) if guard.statement is tree.body[-1]]
    assert [(g.code, g.reason, g.always) for g in found] == [("FSDP101", reason, not under)]
    assert list(guards.of(name_table_builder.build(tree))) == [tree.body[-1]]


def test_line_ends_and_tabs_stay() -> None:
    source = (HEAD + SAVE).replace("    ", "\t").replace("\n", "\r\n")
    after = migrate({"example.py": source.encode()}, PARTIAL)[1]["example.py"]
    wanted = re.sub(r"(?m)^(?: {4})+", lambda m: "\t" * (len(m[0]) // 4), partially(HEAD + SAVE)[1])
    assert after == wanted.replace("\n", "\r\n")


# -- the command ----------------------------------------------------------------------------------


def test_the_summary_names_the_model_and_its_guards(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    file = tmp_path / "a.py"
    file.write_text(HEAD + SAVE)
    monkeypatch.chdir(tmp_path)
    dry = run("rewrite", "--dry-run", ".")
    assert dry.code == 1
    assert "+    raise NotImplementedError(" in dry.out
    assert file.read_text() == HEAD + SAVE
    answer = run("rewrite", ".")
    assert answer.code == 1
    assert "migrated in part: the model made at a.py:6; it raises at a.py:7" in answer.out
    first = file.read_text()
    assert first == partially(HEAD + SAVE)[1]
    for again in (("rewrite", "."), ("rewrite", "--no-partial", ".")):
        assert run(*again).code == 1
        assert file.read_text() == first
    checked = run("check", ".")
    assert checked.code == 1
    assert "1 left for you" in checked.out
    assert "remove it" in checked.out
    assert run("undo").code == 0
    assert file.read_text() == HEAD + SAVE


@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_guard_alone_is_counted(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quote: str
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    guard = guards.text("FSDP302", "no", "NotImplementedError").replace('"', quote)
    text = f"def save():\n    {guard}\n"
    (tmp_path / "a.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run("check", ".").code == 1
    assert run("rewrite", ".").code == 1
    assert (tmp_path / "a.py").read_text() == text


def test_why_there_is_no_guard_is_said(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    source = HEAD + SAVE.replace("return ", "return lambda: ")
    (tmp_path / "a.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    answer = run("rewrite", ".")
    assert "no guard can stand there: it runs when a lambda is called" in answer.out
    assert "migrated in part" not in answer.out


@pytest.mark.parametrize("configured", [False, True])
def test_who_wants_all_or_nothing_says_so(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    text = "[tool.fsdp-migrate]\npartial = false\n" if configured else ""
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "a.py").write_text(HEAD + SAVE)
    monkeypatch.chdir(tmp_path)
    answer = run("rewrite", ".") if configured else run("rewrite", "--no-partial", ".")
    assert "settle it; with --partial they are migrated, and the program stops there" in answer.out
    assert "fully_shard" not in (tmp_path / "a.py").read_text()
    assert ("with --partial" in run("check", ".").out) is configured
    run("rewrite", "--partial", ".")
    assert "raise NotImplementedError(" in (tmp_path / "a.py").read_text()


def test_what_is_to_stay_holds_back_as_before() -> None:
    source = HEAD + "def step(net):\n    model = FSDP(net)\n    return model.clip_grad_norm_(1.0)\n"
    ignoring = Options(leave=frozenset({"FSDP401"}), partial=True)
    result, after = migrate({"example.py": source}, ignoring)
    assert not result.problems
    assert after["example.py"] == source.replace(", StateDictType", "")


LOGGED = (
    HEAD.replace("import torch\n", "import logging\n\nimport hydra\n")
    + """\
logger: logging.Logger


def save(model):
    state = FSDP.state_dict(model)
    logger.info("saved")
    return state


def train(net):
    model = FSDP(net)
    save(model)
    logger.info("trained")


@hydra.main(config_path="conf")
def main(net):
    global logger
    logger = logging.getLogger()
    train(net)
    save(net)
"""
)


def test_a_guard_moves_the_first_read_of_a_name_that_may_be_missing() -> None:
    result, after = partially(LOGGED)
    assert any(d.guarded for d in result.decisions)
    assert "model = fully_shard(net)" in after


def test_what_a_file_that_cannot_be_edited_holds_back_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard = HEAD + "from save import save\n\n\ndef train(net):\n    save(FSDP(net))\n"
    save = HEAD + "def save(model):\n    return FSDP.state_dict(model)\n"
    given = {"train.py": shard, "save.py": save}

    def defect(module: Module, new: Module, target: object) -> str:
        return f"{check.UNSURE}: x" if module.path.stem == "save" else ""

    monkeypatch.setattr(check, "defect", defect)
    result, after = migrate(given, PARTIAL)
    assert "fully_shard" not in after["train.py"]
    (left,) = (d for d in result.decisions if d.code == "FSDP499")
    assert check.UNSURE in left.guard.problem
    (held,) = result.held_back
    assert held.places == ("save.py:6",)
    assert not held.is_stoppable, "no guard can stand there"


# -- every rule's own examples --------------------------------------------------------------------


def sources(example: Example) -> dict[str, str]:
    return {"example.py": example.before, **{p: b for p, (b, _) in example.files.items()}}


EVERY = [
    *((r.code, e.title, sources(e)) for r in REGISTRY.rules.values() for e in r.examples),
    *((r.code, k.title, {"example.py": k.source}) for r in REGISTRY.rules.values() for k in r.keep),
]


@pytest.mark.parametrize(
    ("code", "title", "given"), EVERY, ids=lambda v: v if isinstance(v, str) else ""
)
def test_examples_are_migrated_as_far_or_further(
    code: str, title: str, given: dict[str, str]
) -> None:
    plain, wanted = migrate(given)
    result, after = migrate(given, PARTIAL)
    assert not result.problems
    assert summary(result).coverage >= summary(plain).coverage
    stands = any(d.guarded for d in result.decisions)
    stopped = r"(raise NotImplementedError|raise SystemExit|print)\(\s*\"fsdp-migrate "
    raised = re.compile(stopped)
    assert stands == any(map(raised.search, without_support(after).values()))
    if not stands:
        assert after == wanted
    for name, text in after.items():
        compile(text, name, "exec")
    for options in (PARTIAL, None):
        assert not migrate(after, options)[0].changes


@pytest.mark.parametrize("partial", [False, True])
def test_a_file_with_a_marker_may_hold_what_is_to_stay(partial: bool) -> None:
    source = HEAD + (
        "def step(net):\n    model = FSDP(net)\n    return model.clip_grad_norm_(1.0)\n\n\n"
        "class Wrapped(FSDP):\n    def state_dict(self):\n        return super().state_dict()\n"
    )
    options = Options(leave=frozenset({"FSDP401"}), partial=partial)
    result, after = migrate({"example.py": source}, options)
    assert not result.problems
    assert "model = FSDP(net)" in after["example.py"]
    assert "# TODO(fsdp-migrate FSDP103)" in after["example.py"]


def test_code_that_stays_behind_a_guard_is_no_news_to_a_second_run() -> None:
    """The memory of a parameter is moved, behind a guard: the assignment stays as it was."""
    source = f"""{HEAD}
model = FSDP(torch.nn.Linear(4, 4), use_orig_params=True)


def offload(module):
    for _, param in module.named_parameters():
        if hasattr(param, "_local_shard"):
            param._local_shard = param._local_shard.to("cpu", non_blocking=True)
"""
    result, after = partially(source)
    assert "fully_shard(" in after
    assert result.count(Outcome.LEFT) == 2
    offload = after.split("def offload(module):")[1]
    assert offload.count("raise NotImplementedError") == 2
    assert "isinstance(param, FSDPModule)" not in offload  # a parameter is none


STAYING = """\
class Tied(FSDP):
    def forward(self, *args):
        return self._fsdp_wrapped_module(*args)


def tie(net):
    return Tied(net{settings})


def build(net):
    return FSDP(net)


"""
CLIPS = (
    "def clip(model):\n    if isinstance(model, FSDP):\n        return model.clip_grad_norm_(1.0)\n"
    "    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
)


@pytest.mark.parametrize(
    ("settings", "asking"),
    [
        ("", CLIPS),
        ("", 'def clip(model):\n    return isinstance(model, FSDP) or hasattr(model, "clip")\n'),
        ("", "def kind(model):\n    match model:\n        case FSDP():\n            return 1\n"),
        ("", "KINDS = (FSDP, Other)\n\n\ndef kind(m):\n    return isinstance(m, KINDS)\n"),
        (", cpu_offload=CPUOffload(offload_params=True)", ""),
    ],
    ids=["a test beside what goes wrong", "a test", "a pattern", "a list of classes", "settings"],
)
def test_models_of_a_class_that_stays_hold_what_is_asked_of_either(
    settings: str, asking: str
) -> None:
    """Migrated, the test would be false for them, and their gradients clipped by local norms."""
    head = HEAD.replace("StateDictType", "CPUOffload")
    _, text = partially(head + STAYING.replace("{settings}", settings) + asking)
    assert "return FSDP(net)" in text
    assert "FSDPModule" not in text
    assert "raise " not in text


@pytest.mark.parametrize(
    "asking",
    ["", "def kind(net):\n    model = FSDP(net)\n    return isinstance(model, FSDP)\n"],
    ids=["no test", "a test of what is migrated"],
)
def test_a_class_that_stays_holds_no_others(asking: str) -> None:
    _, text = partially(HEAD + STAYING.replace("{settings}", "") + asking)
    assert "return fully_shard(net)" in text
    assert "class Tied(FSDP)" in text


@pytest.mark.parametrize(
    ("given", "holds"), [("mixed_precision=mp", True), ("mixed_precision=other", False)]
)
def test_settings_that_a_class_that_stays_has_as_well_hold_theirs(given: str, holds: bool) -> None:
    """FSDP1's constructor, which the class calls, takes no policy of FSDP2's."""
    head = HEAD.replace("StateDictType", "MixedPrecision")
    made = "mp = MixedPrecision(param_dtype=torch.bfloat16)\n\n\n"
    source = head + made + STAYING.replace("{settings}", f", {given}")
    _, text = partially(source.replace("FSDP(net)", "FSDP(net, mixed_precision=mp)"))
    assert ("return FSDP(net, mixed_precision=mp)" in text) is holds
    assert ("mp = MixedPrecision(" in text) is holds
