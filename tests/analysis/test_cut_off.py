"""A search that was cut off for its depth keeps its doubt, whatever is asked of it later."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing import answers
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Unknown, Value, cut_off
from fsdp_migrate.syntax.source import Source
from tests.helpers.migrating import files, migrate

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = [f"pass_on_{number}" for number in range(9)]
FUNCTIONS = "\n".join(f"def {name}(given):\n    kept = given\n    return kept" for name in NAMES)
DEEP = "(".join(NAMES) + "({})" + ")" * (len(NAMES) - 1)
BOX = f"""\
{FUNCTIONS}


class Box:
    net = None

    def hook(self, given):
        return given


class Other:
    pass


"""


def _asked(source: str, first: str, then: str, depth: int) -> frozenset[Value]:
    """What an expression of a program is, once another of it has been asked for."""
    project = Project([Source.parse(source.encode(), path=Path("/p/a.py"), display="a.py")])
    (module,) = project.modules
    tracer = Tracer(project)
    found = {
        ast.unparse(node): node
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.expr)
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "MAX_DEPTH", depth)
        assert cut_off(tracer.evaluate(found[first], module))
        return tracer.evaluate(found[then], module)


@pytest.mark.parametrize(
    ("owner", "name", "first"),
    [
        ("Box()", DEEP.format("'net'"), DEEP.format("'net'")),
        (DEEP.format("Box()"), "'net'", DEEP.format("Box()")),
    ],
    ids=["name", "owner"],
)
@pytest.mark.parametrize("depth", [4, 6])
def test_an_attribute_may_be_what_is_set_under_a_name_that_is_not_known(
    owner: str, name: str, first: str, depth: int
) -> None:
    source = f"{BOX}setattr({owner}, {name}, 5)\nbox = Box()\nprint(box.net)\n"
    found = _asked(source, first, "box.net", depth)
    assert any(isinstance(value, Unknown) for value in found)


@pytest.mark.parametrize("depth", [4, 6])
def test_an_attribute_of_another_class_is_known(depth: int) -> None:
    source = (
        f"{BOX}print({DEEP.format(1)})\nsetattr(Other(), 'net', 5)\nbox = Box()\nprint(box.net)\n"
    )
    found = _asked(source, DEEP.format(1), "box.net", depth)
    assert not any(isinstance(value, Unknown) for value in found)


@pytest.mark.parametrize("depth", [3, 5, 8])
def test_a_model_whose_class_is_not_followed_is_not_taken_for_a_unit(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """``while isinstance(model, DDP): model = model.module`` lost its attribute: it never ended."""
    monkeypatch.setattr(answers, "MAX_DEPTH", depth)
    _, after = migrate(files(FIXTURES / "by_hand" / "ddp_or_fsdp" / "before"))
    assert "model = model\n" not in after["engine.py"]


@pytest.mark.parametrize("depth", [3, 5, 8])
def test_a_model_that_is_not_followed_clips_with_a_marker(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    monkeypatch.setattr(answers, "MAX_DEPTH", depth)
    _, after = migrate(files(FIXTURES / "by_hand" / "diffusion_ema" / "before"))
    assert (
        "TODO(fsdp-migrate FSDP401)" in after["train.py"]
        or "model.clip_grad" not in (after["train.py"])
    )


@pytest.mark.parametrize("program", ["diffusion_ema", "configured", "ddp_or_fsdp"])
def test_what_is_kept_in_doubt_leaves_no_line_out(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Lines may be added where a value is in doubt, and places marked or left."""
    before = files(FIXTURES / "by_hand" / program / "before")
    _, plain = migrate(before)
    monkeypatch.setattr(answers, "MAX_DEPTH", 25)
    monkeypatch.setattr(answers, "MAX_IN_VAIN", 1)
    monkeypatch.setattr(answers, "AT_LEAST", 1)
    _, doubtful = migrate(before)
    for path, text in plain.items():
        assert set(text.splitlines()) <= set(doubtful[path].splitlines())


def test_a_parameter_is_in_doubt_where_its_callers_are() -> None:
    """Rules are told of every call of the name, and values that there may be others."""
    calls = "".join(f"    take({name}({number}))\n" for number, name in enumerate(NAMES))
    source = f"{FUNCTIONS}\n\n\ndef take(given):\n    return given\n\n\ndef main():\n{calls}"
    project = Project([Source.parse(source.encode(), path=Path("/p/a.py"), display="a.py")])
    (module,) = project.modules
    tracer = Tracer(project)
    take = next(f for f in module.source.tree.body if getattr(f, "name", "") == "take")
    assert isinstance(take, ast.FunctionDef)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "MAX_DEPTH", 0)
        callers = tracer.callers(take, module)
        assert len(callers) == len(NAMES)
        assert tracer.is_in_doubt(take)
        used = take.body[0]
        assert isinstance(used, ast.Return)
        assert used.value is not None
        assert cut_off(tracer.evaluate(used.value, module))
