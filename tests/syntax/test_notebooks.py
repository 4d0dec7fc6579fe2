"""Notebooks: what is rewritten in them, and that every other byte stays."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsdp_migrate.cli import session
from fsdp_migrate.discovery import search
from fsdp_migrate.migration import engine
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Result
from fsdp_migrate.syntax import notebook
from fsdp_migrate.syntax.notebook import Notebook, NotebookError
from tests.helpers.commandline import Command, answering
from tests.helpers.migrating import REGISTRY, ROOT

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
IMPORTED = "from torch.distributed.fsdp import fully_shard"
WRAP = "model = FSDP(net)"
WRAPPED = "model = fully_shard(net)"


@pytest.fixture
def command(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    return answering(capfdbinary)


def document(*cells: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """A notebook; a string is a code cell, a dictionary a cell as it is."""
    return {
        "cells": [
            c
            if isinstance(c, dict)
            else {
                "cell_type": "code",
                "execution_count": number,
                "id": f"id-{number}",
                "metadata": {},
                "outputs": [],
                "source": c.splitlines(keepends=True),
            }
            for number, c in enumerate(cells, 1)
        ],
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
        **more,
    }


def markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": [text]}


def written(content: dict[str, Any]) -> bytes:
    """As Jupyter writes it."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def migrate(data: bytes, **files: str) -> tuple[Result, bytes]:
    """The result of a run over ``train.ipynb`` and modules beside it, and the notebook after it."""
    path = ROOT / "train.ipynb"
    contents = {path: data, **{ROOT / f"{n}.py": t.encode() for n, t in files.items()}}
    sources, problems = engine.read(contents, {p: p.name for p in contents})
    assert not problems, problems
    result = engine.rewrite(sources, registry=REGISTRY)
    assert not result.problems
    return result, result.changes.get(path, data)


def sources(data: bytes) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(data)["cells"]]


def after(*cells: str | dict[str, Any]) -> list[str]:
    """The cells of a notebook after a run, which a second run does not change."""
    _, new = migrate(written(document(*cells)))
    result, again = migrate(new)
    assert again == new
    assert not result.changes
    return sources(new)


def outcomes(*cells: str | dict[str, Any]) -> list[tuple[str, Outcome, int, int]]:
    result, _ = migrate(written(document(*cells)))
    return [(d.code, d.outcome, *d.site.place[:2]) for d in result.decisions]


def problem(data: bytes) -> tuple[str, int, int]:
    found, problems = engine.read({ROOT / "train.ipynb": data}, {})
    assert not found
    assert len(problems) == 1
    return problems[0].message, problems[0].cell, problems[0].line


# -- what is rewritten ----------------------------------------------------------------------------


def test_cells_are_one_module_in_their_order() -> None:
    assert after(
        markdown("# FSDP"),
        f"import torch\n{IMPORT}",
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n\n"
        "policy = ModuleWrapPolicy({Block})",
        "model = FSDP(net, auto_wrap_policy=policy)",
        "print(model)",
        "model.clip_grad_norm_(1.0)\n",
    ) == [
        "# FSDP",
        "import torch\nfrom torch.distributed.fsdp import fully_shard",
        "policy = (Block,)",
        "for module in reversed(list(net.modules())):\n"
        "    if module is not net and isinstance(module, policy):\n"
        "        fully_shard(module)\n"
        "model = fully_shard(net)",
        "print(model)",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
    ]


def test_imports_stand_in_a_cell_that_has_run() -> None:
    cells = after(
        IMPORT,
        "opt = None",
        WRAP,
        "state = FSDP.optim_state_dict(model, optimizer(model))",
        "import wandb\nimport torch.nn.utils as nn_utils",
    )
    assert "from fsdp2_support import whole_on_cpu" in cells[0]
    assert cells[4] == "import wandb\nimport torch.nn.utils as nn_utils"


def test_a_star_does_not_take_what_parts_cells() -> None:
    stars = "from torch.distributed.fsdp import *\nfrom torch.distributed.fsdp.wrap import *"
    wrap = "model = FullyShardedDataParallel(Net())"
    cells = after(f"{stars}\nfrom parts import Net", "%time 1\nprint(unbound)", wrap)
    assert cells[1:] == ["%time 1\nprint(unbound)", "model = fully_shard(Net())"]


def test_an_import_that_a_later_cell_repeats_is_used() -> None:
    cells = after(f"import torch\n{IMPORT}", WRAP, "import torch\nmodel.clip_grad_norm_(1.0)")
    assert cells[2] == "import torch\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def test_an_import_of_a_later_cell_is_not_used() -> None:
    cells = after(IMPORT, f"{WRAP}\nmodel.clip_grad_norm_(1.0)", "import torch")
    assert "import torch" in cells[0]


def test_a_cell_may_become_empty() -> None:
    strategy = "from torch.distributed.fsdp import ShardingStrategy"
    wrap = "FSDP(net, sharding_strategy=ShardingStrategy.FULL_SHARD)"
    cells = after(f"import torch\n{IMPORT}", strategy, "", wrap)
    assert cells == [
        "import torch\nfrom torch.distributed.fsdp import fully_shard",
        "",
        "",
        "fully_shard(net)",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "%matplotlib inline",
        "!pip install torch \\\n    wandb",
        "!echo 'it (is'",
        "    # a comment\n%cd /tmp",
        "?torch",
        "torch.nn.Linear??",
        "files = !ls *.py",
        "took = %timeit -o step()",
        ";print hello",
        'text = """\n%not a command\n!nor this"""\n%env A=1',
        "x = [1,\n2] ; y = '('  # !\n!ls",
        "for i in range(3):\n    !echo {i}\n    %time step()",
    ],
)
def test_commands_come_back_as_they_were(line: str) -> None:
    cells = after(f"{line}\nimport torch\n{IMPORT}\n{line}", f"{line}\n{WRAP}\n\n{line}\n")
    assert (
        cells[0] == f"{line}\nimport torch\nfrom torch.distributed.fsdp import fully_shard\n{line}"
    )
    assert cells[1] == f"{line}\n{WRAPPED}\n\n{line}\n"


@pytest.mark.parametrize(
    "magic", ["%%time", "%%capture out", "\n%%timeit -n 1", "%%capture\n%%time"]
)
def test_magics_that_run_the_cell_are_kept_above_it(magic: str) -> None:
    assert after(IMPORT, f"{magic}\n{WRAP}")[1] == f"{magic}\n{WRAPPED}"


@pytest.mark.parametrize("magic", ["%%bash", "%%html", "%%sql", "%%writefile a.txt"])
def test_other_cells_are_not_read(magic: str) -> None:
    assert after(IMPORT, f"{magic}\nmodel = <FSDP>(net", WRAP)[1:] == [
        f"{magic}\nmodel = <FSDP>(net",
        WRAPPED,
    ]


def test_commands_in_a_context_that_goes() -> None:
    before = (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "    %cd /tmp\n"
        "    torch.save(model.state_dict(), 'a.pt')"
    )
    cells = after(f"import torch\n{IMPORT}, StateDictType", WRAP, before)
    assert cells[2].startswith("%cd /tmp\ntorch.save(get_model_state_dict(")


def test_a_file_that_a_cell_writes_is_a_module() -> None:
    script = f"%%writefile train.py\n{IMPORT}\n\nmodel = FSDP(net)\n"
    cells = after(script, "!torchrun train.py")
    assert cells == [
        "%%writefile train.py\nfrom torch.distributed.fsdp import fully_shard\n\n"
        "model = fully_shard(net)\n",
        "!torchrun train.py",
    ]


def test_files_that_cells_write_import_each_other() -> None:
    cells = after(
        f"%%writefile sharding.py\n{IMPORT}\n\ndef shard(net):\n    return FSDP(net)",
        "%%writefile train.py\nfrom sharding import shard\nmodel = shard(net)\n"
        "model.clip_grad_norm_(1.0)",
    )
    assert "fully_shard" in cells[0]
    assert "clip_grad_norm_(model.parameters(), 1.0)" in cells[1]


def test_modules_beside_the_notebook_are_known() -> None:
    data = written(
        document("from sharding import shard\nmodel = shard(net)", "model.clip_grad_norm_(1.0)")
    )
    shard = f"{IMPORT}\n\ndef shard(net):\n    return FSDP(net)\n"
    result, new = migrate(data, sharding=shard)
    assert {p.name for p in result.changes} == {"train.ipynb", "sharding.py"}
    assert "clip_grad_norm_(model.parameters(), 1.0)" in sources(new)[1]


def test_the_support_module_stands_beside_the_notebook() -> None:
    path = ROOT / "notebooks" / "train.ipynb"
    package = {ROOT / "pack" / n: b"net = 1\n" for n in ("__init__.py", "model.py")}
    data = written(
        document(f"from pack.model import net\n{IMPORT}", WRAP, "FSDP.optim_state_dict(model, opt)")
    )
    found, _ = engine.read({path: data, **package}, {})
    changes = engine.rewrite(found, registry=REGISTRY).changes
    assert set(changes) == {path, path.parent / "fsdp2_support.py"}
    assert "from fsdp2_support import" in sources(changes[path])[0]


def test_await_at_the_top_of_a_cell() -> None:
    assert after(IMPORT, f"await ready()\n{WRAP}\nasync for x in y():\n    pass")[1].startswith(
        f"await ready()\n{WRAPPED}"
    )


def test_notebook_launcher() -> None:
    cells = after(
        "from accelerate import notebook_launcher\nimport torch",
        f"def train():\n    {IMPORT}\n    model = FSDP(net)\n    model.clip_grad_norm_(1.0)",
        "notebook_launcher(train, num_processes=2)",
    )
    assert "    from torch.distributed.fsdp import fully_shard\n" in cells[1]
    assert cells[0] == "from accelerate import notebook_launcher\nimport torch"


# -- what is left ---------------------------------------------------------------------------------


def test_statements_do_not_move_between_cells() -> None:
    cells = (
        f"import torch\n{IMPORT}",
        "opt = torch.optim.SGD(net.parameters(), 0.1)",
        WRAP,
        "opt.step()",
    )
    assert outcomes(*cells) == [
        ("FSDP403", Outcome.LEFT, 2, 1),
        ("FSDP190", Outcome.LEFT, 3, 1),
    ]
    new = after(*cells)
    assert new[0] == cells[0]
    assert new[1].startswith("# TODO(fsdp-migrate FSDP403): A statement would have to move")
    assert new[2:] == list(cells[2:])


def test_statements_move_within_a_cell() -> None:
    cells = after(
        f"import torch\n{IMPORT}",
        f"opt = torch.optim.SGD(net.parameters(), 0.1)\n{WRAP}\nopt.step()",
    )
    assert cells[1] == f"{WRAPPED}\nopt = torch.optim.SGD(model.parameters(), 0.1)\nopt.step()" or (
        cells[1].index("fully_shard") < cells[1].index("SGD")
    )


def test_a_timed_statement_is_left() -> None:
    cells = (IMPORT, f"%time {WRAP}")
    assert outcomes(*cells) == [("FSDP101", Outcome.LEFT, 2, 1)]
    result, new = migrate(written(document(*cells)))
    assert result.decisions[0].site.place == (2, 1, 15)
    assert sources(new)[1].endswith(f"\n%time {WRAP}")


@pytest.mark.parametrize(
    ("cell", "held"),
    [
        ("%prun -s time model.state_dict()", True),
        ("%lprun -f FSDP.forward model(x)", True),
        (f"%%mine\n{IMPORT}", True),
        (f"%%python\n{IMPORT}", False),
        (f"%%writefile -a train.py\n{IMPORT}", False),
        (f"%%writefile $name.py\n{IMPORT}", False),
        (f"!python -c '{IMPORT}'", False),
        ("FSDP?", False),
    ],
)
def test_commands_that_meet_fsdp1_are_left(cell: str, held: bool) -> None:
    found = outcomes(IMPORT, WRAP, cell)
    assert ("FSDP499", Outcome.LEFT, 3, 1) in found
    assert found[0][1] is (Outcome.LEFT if held else Outcome.REWRITTEN)
    assert after(IMPORT, WRAP, cell)[2].endswith(cell)


@pytest.mark.parametrize(
    "cell",
    ["%prun model(x)", "!ls FSDP", "%%bash\necho FSDP", "%%html\n.state_dict()", "Adam?", "%who"],
)
def test_other_commands_are_none_of_our_business(cell: str) -> None:
    assert outcomes(IMPORT, WRAP, cell) == [("FSDP101", Outcome.REWRITTEN, 2, 1)]


@pytest.mark.parametrize(
    "content",
    [
        document("import torch\nmodel = FSDP(net)"),
        document(markdown(f"```\n{IMPORT}\n{WRAP}\n```")),
        document({"cell_type": "raw", "metadata": {}, "source": [IMPORT]}),
        document("from fairscale.nn import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)"),
        document(f"{IMPORT}\n{WRAP}", metadata={"kernelspec": {"language": "R"}}),
        document(f"{IMPORT}\n{WRAP}", metadata={"language_info": {"name": "julia"}}),
        document({**document(IMPORT)["cells"][0], "metadata": {"vscode": {"languageId": "sql"}}}),
        document(f"%%bash\n{WRAP}"),
        document(),
    ],
)
def test_notebooks_without_fsdp1_stay(content: dict[str, Any]) -> None:
    data = written(content)
    result, new = migrate(data)
    assert new == data
    assert not result.decisions


# -- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a notebook"),
        (b"{", "is not JSON"),
        (b'{"cells": [], "nbformat": 4} x', "is not JSON"),
        (b"<<<<<<< HEAD\n{}", "is not a notebook"),
        (b"[]", "is not a notebook"),
        (b"{}", "is not a notebook"),
        (b'{"cells": [3], "nbformat": 4}', "is not a notebook"),
        (b'{"cells": {}, "nbformat": 4}', "has no cells"),
        (b'{"nbformat": 3, "worksheets": [{"cells": []}]}', "of format 3"),
        (b'{"cells": [{"cell_type": "code", "source": [1]}], "nbformat": 4}', "neither a string"),
        (b'{"cells": [{"cell_type": "code", "source": "\xff"}], "nbformat": 4}', "UTF-8"),
        (b'{"cells": [{"cell_type": "code", "source": "\\ud800"}], "nbformat": 4}', "surrogate"),
        (b'{"cells": [{"cell_type": "code", "source": "a\nb"}], "nbformat": 4}', "is not JSON"),
        (b'{"cells": ' + 5000 * b"[" + b"", "is not"),
    ],
)
def test_files_that_are_no_notebooks(data: bytes, message: str) -> None:
    assert message in problem(data)[0]


def test_a_cell_that_does_not_parse() -> None:
    data = written(document(markdown("x"), IMPORT, f"%ls\nx = 1\ndef f(:\n    {WRAP}"))
    assert problem(data) == ("does not parse: invalid syntax", 3, 3)


def test_an_unreadable_notebook_costs_no_other_file(tmp_path: Path, command: Command) -> None:
    (tmp_path / "a.ipynb").write_bytes(written(document(IMPORT, "def (")))
    (tmp_path / "b.ipynb").write_bytes(written(document(f"{IMPORT}\n{WRAP}")))
    (tmp_path / "c.ipynb").write_text("torch.distributed.fsdp, but no JSON")
    (tmp_path / "d.ipynb").write_text("neither")
    answer = command("rewrite", tmp_path)
    assert answer.code == 2
    assert f"{tmp_path}/a.ipynb:cell 2:1: does not parse" in answer.err
    assert f"{tmp_path}/c.ipynb: is not a notebook" in answer.err
    assert "d.ipynb" not in answer.err
    assert sources((tmp_path / "b.ipynb").read_bytes())[0].endswith(WRAPPED)


# -- bytes ----------------------------------------------------------------------------------------


def test_one_string_sources() -> None:
    cell = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "source": f'{IMPORT}\n# é\\ "\n{WRAP}',
    }
    _, new = migrate(written(document(cell)))
    assert json.loads(new)["cells"][0]["source"] == (
        f'from torch.distributed.fsdp import fully_shard\n# é\\ "\n{WRAPPED}'
    )


def test_line_ends_of_windows() -> None:
    cell = "\r\n".join([IMPORT, WRAP, "x = 1"])
    data = written(document(cell, "import torch\ny = 2", markdown("a\r\n"))).replace(b"\n", b"\r\n")
    _, new = migrate(data)
    assert (
        sources(new)[0] == f"from torch.distributed.fsdp import fully_shard\r\n{WRAPPED}\r\nx = 1"
    )
    assert new.count(b"\n") == new.count(b"\r\n")


@pytest.mark.parametrize("escape", [True, False])
def test_spelling_of_characters(escape: bool) -> None:
    content = document(f"{IMPORT}\n# é €\n{WRAP}  # ü\n", markdown("ä"))
    content["cells"][0]["outputs"] = [{"text": "\x1b[0m"}]
    data = json.dumps(content, ensure_ascii=escape, indent=2).encode()
    _, new = migrate(data)
    expected = data.replace(IMPORT.encode(), IMPORTED.encode())
    assert new == expected.replace(WRAP.encode(), WRAPPED.encode())


def test_a_byte_order_mark_stays() -> None:
    data = b"\xef\xbb\xbf" + written(document(IMPORT, WRAP))
    assert migrate(data)[1].startswith(b"\xef\xbb\xbf{")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
OTHER = st.sampled_from(
    ["", "x = 1", "x = 'ä'\n\n", "%ls\n", "!ls \\\n  -l\ny = 2", "# \u2028 \x0c\n", "%%bash\nls\n"]
)
FSDP = st.sampled_from(
    [
        f"{IMPORT}\n{WRAP}",
        f"# é\n{IMPORT}\n\n\n{WRAP}\n\n",
        f"{IMPORT}\n%time x = 1\n{WRAP}  # ü\nprint('\\n')",
    ]
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[bytes, list[str], int]:
    """A notebook in any layout, the text of its cells, and which of them has FSDP1."""
    texts = draw(st.lists(OTHER, max_size=4))
    index = draw(st.integers(0, len(texts)))
    texts.insert(index, draw(FSDP))
    cells = []
    for text in texts:
        lines = text.splitlines(keepends=True) if draw(st.booleans()) else text.split(" ")
        listed = (
            lines
            if lines == text.splitlines(keepends=True)
            else [f"{w} " for w in lines[:-1]] + lines[-1:]
        )
        members: dict[str, Any] = {
            "cell_type": "code",
            "source": text if draw(st.booleans()) else listed,
            "metadata": {"note": draw(JSON)},
            "outputs": [draw(JSON)],
        }
        keys = draw(st.permutations(sorted(members)))
        cells.append({key: members[key] for key in keys})
    whole = {"cells": cells, "metadata": {"x": draw(JSON)}, "nbformat": 4, "more": draw(JSON)}
    content = {key: whole[key] for key in draw(st.permutations(sorted(whole)))}
    text = json.dumps(
        content,
        indent=draw(st.sampled_from([None, 0, 1, 4, "\t"])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")])),
        ensure_ascii=draw(st.booleans()),
    )
    data = (text + draw(st.sampled_from(["", "\n", "\r\n"]))).encode("utf-8", "backslashreplace")
    return data, texts, index


# The first text that is drawn takes the time to list all characters.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layouts())
def test_nothing_changes_but_the_cells_that_do(layout: tuple[bytes, list[str], int]) -> None:
    data, texts, index = layout
    read = Notebook.read(data)
    assert [cell.text for cell in read.cells] == texts
    assert read.renewed({cell: cell.code for cell in read.cells}) == data
    _, new = migrate(data)
    changed = read.cells[index]
    raw = data.decode()
    assert new.decode().startswith(raw[: changed.start])
    assert new.decode().endswith(raw[changed.end :])
    renewed = Notebook.read(new).cells
    assert [c.text for c in renewed if c.number != changed.number] == [
        c.text for c in read.cells if c is not changed
    ]
    expected = texts[index].replace(IMPORT, IMPORTED)
    assert renewed[index].text == expected.replace(WRAP, WRAPPED)


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.ipynb").write_bytes(
        written(
            document(markdown("# Title"), f"{IMPORT}\n\n{WRAP}", "FSDP.optim_state_dict(model, o)")
        )
    )
    (tmp_path / "other.ipynb").write_bytes(written(document("import torch")))
    return tmp_path


def test_a_rewrite_is_undone(tree: Path, command: Command) -> None:
    before = {p.name: p.read_bytes() for p in tree.iterdir()}
    assert command("rewrite", ".").code == 0
    assert (tree / "fsdp2_support.py").is_file()
    assert (tree / "other.ipynb").read_bytes() == before["other.ipynb"]
    assert command("undo").code == 0
    assert {p.name: p.read_bytes() for p in tree.iterdir()} == before


def test_the_patch_of_a_dry_run_applies(tree: Path, command: Command) -> None:
    answer = command("rewrite", "--dry-run", ".")
    (tree / "change.patch").write_text(answer.out)
    subprocess.run(["git", "apply", "change.patch"], cwd=tree, check=True)
    applied = (tree / "train.ipynb").read_bytes()
    assert session.run([tree]).result.changes == {}
    assert "fully_shard" in sources(applied)[1]


def test_places_are_cells_and_lines(tree: Path, command: Command) -> None:
    concise = command("check", ".", "--format", "concise").out
    assert concise.startswith("train.ipynb:cell 2:3:9: FSDP101 [*] FSDP() -> fully_shard\n")
    full = command("check", ".").out
    assert " --> train.ipynb:cell 2:3:9\n" in full
    assert f"3 | {WRAP}\n" in full
    first = json.loads(command("check", ".", "--format", "json").out)["sites"][0]
    assert (first["path"], first["cell"], first["line"]) == ("train.ipynb", 2, 3)
    annotation = command("check", ".", "--format", "github").out.splitlines()[0]
    line = int(annotation.partition("line=")[2].partition(",")[0])
    assert WRAP in (tree / "train.ipynb").read_text().splitlines()[line - 1]
    explained = command("explain", "train.ipynb:cell 2:3").out
    assert "fully_shard" in explained


def test_a_notebook_is_named_on_the_command_line(tree: Path, command: Command) -> None:
    assert command("check", "train.ipynb").code == 1
    assert command("check", "other.ipynb").code == 0


# -- the gate -------------------------------------------------------------------------------------


def test_notebooks_without_fsdp_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ipynb").write_bytes(written(document("import torch")))

    def fail(data: bytes) -> bytes:
        raise AssertionError

    monkeypatch.setattr(notebook, "code", fail)
    assert not search.find([tmp_path]).candidates


def test_words_in_outputs_do_not_make_a_candidate(tmp_path: Path) -> None:
    cell = document("model")["cells"][0]
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [IMPORT]}]
    (tmp_path / "a.ipynb").write_bytes(written(document(cell)))
    assert not search.find([tmp_path]).candidates


@pytest.mark.parametrize("one_string", [True, False])
def test_imports_are_found_in_either_form_of_source(tmp_path: Path, one_string: bool) -> None:
    content = document("import torch\nfrom torch.distributed import (\nfsdp,\n)\nfsdp.x")
    if one_string:
        content["cells"][0]["source"] = "".join(content["cells"][0]["source"])
    (tmp_path / "a.ipynb").write_bytes(written(content))
    assert list(search.find([tmp_path]).candidates) == [tmp_path / "a.ipynb"]


def test_a_notebook_that_meets_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "sharding.py").write_text(f"{IMPORT}\ndef shard(net):\n    return FSDP(net)\n")
    (tmp_path / "a.ipynb").write_bytes(written(document("from sharding import shard", "shard(n)")))
    (tmp_path / "b.ipynb").write_bytes(written(document("import torch", "shard(n)")))
    assert list(search.find([tmp_path]).others) == [tmp_path / "a.ipynb"]


def test_old_formats_say_how_to_go_on() -> None:
    with pytest.raises(NotebookError, match="nbconvert"):
        Notebook.read(b'{"nbformat": 3, "nbformat_minor": 0, "worksheets": []}')
