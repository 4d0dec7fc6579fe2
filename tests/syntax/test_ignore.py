"""Comments that say what is to stay as it is, and markers that stand in code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.migration.engine import Options, Result
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, LoadedRule
from fsdp_migrate.syntax import suppressions
from tests.helpers.commandline import Command
from tests.helpers.migrating import REGISTRY, migrate

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
LATER = """

def step(net):
    model = build(net)
    return model.clip_grad_norm_(1.0)
"""
PLAIN = f"{HEAD}\ndef build(model):\n    return FSDP(model)\n{LATER}"


def build(body: str) -> str:
    """A module that wraps a model as ``body`` says and clips its gradients."""
    return f"{HEAD}\ndef build(model, other=None):\n{body}\n{LATER}"


def decisions(source: str) -> list[Decision]:
    return migrate({"a.py": source})[0].decisions


def ignored(source: str) -> set[str]:
    """The constructs whose sites a comment of their own ignores."""
    return {
        str(d.site.construct).replace("FullyShardedDataParallel", "FSDP")
        for d in decisions(source)
        if d.ignored is not None and d.message.startswith("stays on purpose")
    }


def kept(source: str) -> Result:
    """The result of a run that must not change anything, nor leave anything for a human."""
    result, after = migrate({"a.py": source})
    assert not result.problems
    assert after["a.py"] == source
    assert all(d.ignored is not None for d in result.decisions)
    return result


# -- what a comment ignores -----------------------------------------------------------------------

CONSTRUCTOR = [
    "    return FSDP(model)  # fsdp-migrate: leave[FSDP101] legacy",
    "    return FSDP(model)  #fsdp-migrate:leave[FSDP101]",
    "    return FSDP(model)  # fsdp-migrate: leave [ fsdp101 , FSDP9 ]: legacy",
    "    return FSDP(model)  # fsdp-migrate: leave[FSDP1]",
    "    return FSDP(model)  # fsdp-migrate: leave",
    "    return FSDP(model)  # fsdp-migrate: leave - legacy",
    "    return FSDP(model)  # noqa: E501  # fsdp-migrate: leave[FSDP101]  # pylint: disable=x",
    "    # fsdp-migrate: leave[FSDP101]\n    return FSDP(model)",
    "    # fsdp-migrate: leave[FSDP101]\n    # old launcher\n    return FSDP(model)",
    "    # why:\n    # fsdp-migrate: leave\n    return FSDP(model)",
    "    return FSDP(  # fsdp-migrate: leave[FSDP101]\n        model,\n    )",
    "    return FSDP(\n        model,\n    )  # fsdp-migrate: leave[FSDP101]",
    "    return (\n        FSDP(model)  # fsdp-migrate: leave[FSDP101]\n    )",
    "    return (\n        # fsdp-migrate: leave[FSDP101]\n        FSDP(model)\n    )",
    "    return (\n        FSDP(\n            model\n        )  # fsdp-migrate: leave\n    )",
    '    text = """\n# no comment\n"""; return FSDP(model)  # fsdp-migrate: leave[FSDP101]',
    "    other = 1; return FSDP(model)  # fsdp-migrate: leave[FSDP101]",
    "    return \\\n        FSDP(model)  # fsdp-migrate: leave[FSDP101]",
    "    if other: return FSDP(model)  # fsdp-migrate: leave[FSDP101]",
    "    if other:\n        while True:\n            return FSDP(model)  # fsdp-migrate: leave",
    "    return FSDP(model)  # fsdp-migrate: leave[FSDP101] voilà, 模型",
    "    return 'é😀', FSDP(model)  # fsdp-migrate: leave",
]


@pytest.mark.parametrize("body", CONSTRUCTOR)
def test_a_comment_keeps_its_line(body: str) -> None:
    source = build(body)
    kept(source)
    assert "FSDP()" in ignored(source)


@pytest.mark.parametrize("body", CONSTRUCTOR)
def test_line_endings_and_tabs_make_no_difference(body: str) -> None:
    kept(build(body).replace("\n", "\r\n"))
    kept(build(body).replace("    ", "\t"))


NOT_IGNORED = [
    "    return FSDP(model)  # fsdp-migrate: leave[FSDP401]",
    "    return FSDP(model)  # fsdp-migrate: leave[]",
    "    return FSDP(model)  # fsdp-migrate: leave[FSDP101",
    "    return FSDP(model)  # fsdp-migrate: leave[E501, FSDP101]",
    "    return FSDP(model)  # fsdp-migrate: leave-line",
    "    return FSDP(model)  # fsdp-migrate: leaved by the tests",
    "    return FSDP(model)  # fsdp-migrate: leave-file[FSDP101]",
    '    return FSDP(model)  # write "# fsdp-migrate: leave" to keep it',
    "    return FSDP(model)  # noqa",
    "    return FSDP(model)\n    # fsdp-migrate: leave",
    "    # fsdp-migrate: leave\n\n    return FSDP(model)",
    "    # fsdp-migrate: leave\n    other = 1\n    return FSDP(model)",
    "    other = 1  # fsdp-migrate: leave\n    return FSDP(model)",
    '    text = "# fsdp-migrate: leave"; return FSDP(model)',
    '    text = """\n    # fsdp-migrate: leave"""; return FSDP(model)',
    '    text = f"""{other}\n    # fsdp-migrate: leave"""; return FSDP(model)',
    "    if other:  # fsdp-migrate: leave\n        return FSDP(model)",
    "    return FSDP(\n        model,\n        # fsdp-migrate: leave\n        None,\n    )",
    "    return [\n        1,  # fsdp-migrate: leave\n        FSDP(model),\n        1,\n    ][1]",
]


@pytest.mark.parametrize("body", NOT_IGNORED)
def test_nothing_else_is_such_a_comment(body: str) -> None:
    source = build(body)
    assert "FSDP()" not in ignored(source)
    constructor = next(d for d in decisions(source) if d.code in {"FSDP101", "FSDP190"})
    assert constructor.ignored is None


def test_the_docstrings_own_lines_are_no_comments() -> None:
    source = f'"""\n# fsdp-migrate: leave-file\n"""\n{PLAIN}'
    assert not ignored(source)


def test_on_the_line_of_an_argument_it_counts_for_the_argument() -> None:
    source = build(
        "    return FSDP(\n"
        "        model,\n"
        "        device_id=0,  # fsdp-migrate: leave[FSDP112] set elsewhere\n"
        "        limit_all_gathers=True,\n"
        "    )"
    )
    assert ignored(source) == {"FSDP(device_id=)"}
    by_code = {d.code: d for d in decisions(source)}
    assert by_code["FSDP112"].message == "stays on purpose: set elsewhere"


def test_of_two_calls_in_a_list_only_the_one_on_the_line() -> None:
    source = f"""{HEAD}
models = [
    FSDP(
        first,
    ),  # fsdp-migrate: leave
    FSDP(second),
]
"""
    found = decisions(source)
    assert [(d.outcome, d.ignored is not None) for d in found] == [
        (Outcome.LEFT, True),
        (Outcome.REWRITTEN, False),
    ]


def test_a_head_over_several_lines() -> None:
    source = f"""{HEAD}
def save(model):
    with FSDP.summon_full_params(
        model,
    ):  # fsdp-migrate: leave[FSDP306]
        print(model)


save(FSDP(net))  # fsdp-migrate: leave
"""
    assert kept(source).decisions


def test_a_file_is_ignored_from_its_head() -> None:
    for comment in (
        "# fsdp-migrate: leave-file",
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n# fsdp-migrate: leave-file[FSDP] later",
        '"""Docstring\nof several lines."""\n\n# fsdp-migrate: leave-file[FSDP1, FSDP4]',
    ):
        kept(f"{comment}\n{PLAIN}")
        kept("\ufeff" + f"{comment}\n{PLAIN}")


def test_a_file_is_ignored_from_nowhere_else() -> None:
    for source in (
        f"import torch\n# fsdp-migrate: leave-file\n{PLAIN}",
        f"import torch  # fsdp-migrate: leave-file\n{PLAIN}",
        f"{PLAIN}\n# fsdp-migrate: leave-file\n",
    ):
        assert not ignored(source)


def test_a_file_that_is_ignored_holds_back_what_needs_it() -> None:
    helper = f"# fsdp-migrate: leave-file\n{HEAD}\ndef wrap(m):\n    return FSDP(m)\n"
    user = "from helper import wrap\n\ndef step(n):\n    wrap(n).clip_grad_norm_(1.0)\n"
    result, after = migrate({"helper.py": helper, "user.py": user})
    assert after == {"helper.py": helper, "user.py": user}
    messages = {d.site.module.display: d.message for d in result.decisions}
    assert messages["user.py"] == "stays FSDP1 with its model, as helper.py:1 says"


# -- what becomes of the rest ---------------------------------------------------------------------


def test_a_model_stays_with_its_constructor_and_another_goes() -> None:
    source = f"""{HEAD}
def build(model, other):
    model = FSDP(model, limit_all_gathers=True)  # fsdp-migrate: leave[FSDP101] eval only
    other = FSDP(other)
    model.clip_grad_norm_(1.0)
    other.clip_grad_norm_(1.0)
"""
    result, after = migrate({"a.py": source})
    assert "model = FSDP(model, limit_all_gathers=True)  # fsdp-migrate" in after["a.py"]
    assert "    model.clip_grad_norm_(1.0)\n" in after["a.py"]
    assert "fully_shard(other)" in after["a.py"]
    assert "other.clip_grad_norm_" not in after["a.py"]
    assert "TODO" not in after["a.py"]
    assert result.count(Outcome.LEFT) == 3
    assert all(d.ignored for d in result.decisions if d.outcome is Outcome.LEFT)
    again, same = migrate(after)
    assert same == after
    assert again.count(Outcome.LEFT) == 3


def test_leaving_a_use_alone_holds_its_model_back() -> None:
    source = PLAIN.replace("norm_(1.0)", "norm_(1.0)  # fsdp-migrate: leave[FSDP401] ours")
    result, after = migrate({"a.py": source})
    assert after["a.py"] == source
    (constructor,) = (d for d in result.decisions if d.code == "FSDP190")
    assert constructor.ignored is None
    assert constructor.message == "held back with a.py:10 (FSDP401), which stays on purpose"
    assert "a.py:10" in constructor.help


def test_a_shared_value_holds_back_the_models_that_share_it() -> None:
    source = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

half = MixedPrecision(param_dtype=torch.bfloat16)

def build(actor, critic):
    actor = FSDP(actor, mixed_precision=half)  # fsdp-migrate: leave[FSDP101]
    critic = FSDP(critic, mixed_precision=half)
    return actor, critic
"""
    result, after = migrate({"a.py": source})
    assert after["a.py"] == source
    critic = [d for d in result.decisions if d.site.position[0] == 8]
    assert critic
    assert all(d.held and d.ignored is None for d in critic), "nobody asked for the critic"


def test_what_is_left_anyway_gets_no_marker() -> None:
    left = f"{HEAD}\nclass Mine(FSDP):\n    def state_dict(self):\n        return super().x()\n"
    _, marked = migrate({"a.py": left})
    assert "TODO" in marked["a.py"]
    kept(left.replace("Mine(FSDP):", "Mine(FSDP):  # fsdp-migrate: leave[FSDP103]"))


def test_what_is_held_back_may_be_ignored_by_either_code() -> None:
    source = build("    return FSDP(model, ignored_modules=[1], ignored_states=[2])")
    held = [d for d in decisions(source) if str(d.site.construct).endswith("clip_grad_norm_")]
    assert [d.code for d in held] == ["FSDP190"]
    for code in ("FSDP190", "FSDP401", "FSDP"):
        text = source.replace("norm_(1.0)", f"norm_(1.0)  # fsdp-migrate: leave[{code}]")
        assert ignored(text) == {"FSDP.clip_grad_norm_"}


def test_the_real_cause_is_named_before_what_is_ignored() -> None:
    source = build("    return FSDP(model, ignored_modules=[1], ignored_states=[2])").replace(
        "norm_(1.0)", "norm_(1.0)  # fsdp-migrate: leave"
    )
    causes = {d.message for d in decisions(source) if d.held and d.ignored is None}
    assert causes
    assert not any("ignored" in cause for cause in causes)


def test_what_is_ignored_decides_on_no_other_form() -> None:
    """The constructor could also be kept as a class, which would leave one site less."""
    source = f"""{HEAD}
class Sharded(FSDP):
    def __init__(self, module, **kwargs):
        super().__init__(module, use_orig_params=True, **kwargs)  # fsdp-migrate: leave[FSDP116]


def build(net, rank):
    return Sharded(net, device_id=rank)
"""
    assert ignored(source) == {"FSDP(use_orig_params=)"}


def test_a_project_for_an_old_torch_is_no_exception() -> None:
    from packaging.version import Version

    source = build("    return FSDP(model)  # fsdp-migrate: leave here")
    result, _ = migrate({"a.py": source}, Options(target=Version("2.5")))
    assert all(d.ignored is not None for d in result.decisions)


EXAMPLES = [
    (rule, example)
    for rule in REGISTRY.rules.values()
    for example in rule.examples
    if example.outcome is not Outcome.LEFT
]


def name(value: object) -> str:
    if isinstance(value, Example):
        return value.title
    return value.code if isinstance(value, LoadedRule) else ""


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_whatever_a_rule_rewrites_can_be_ignored(rule: LoadedRule, example: Example) -> None:
    """The site that an example shows stays, whatever it takes to leave the rest alone."""
    files = {"example.py": example.before, **{p: b for p, (b, _) in example.files.items()}}
    shown = next(
        (
            d
            for d in migrate(files)[0].decisions
            if d.code == rule.code and d.outcome is not Outcome.LEFT
        ),
        None,
    )
    assert shown is not None
    path, place = shown.site.module.display, shown.site.position
    lines = files[path].split("\n")
    _, last = suppressions.read(files[path]).logical_line(place[0])
    lines[last - 1] += f"  # fsdp-migrate: leave[{rule.code}] on purpose"
    files[path] = "\n".join(lines)
    result, after = migrate(files)
    assert not result.problems
    found = [
        d
        for d in result.decisions
        if d.site.position == place and str(d.site.construct) == str(shown.site.construct)
    ]
    assert found
    assert all(d.message == "stays on purpose: on purpose" for d in found)
    if str(shown.site.construct) != "absent name":  # what stands there is a site of its own
        assert beginning(shown, files[path]) in after[path]
    assert not migrate(after)[0].changes


def beginning(decision: Decision, text: str) -> str:
    """The first line of the site, from where the site begins."""
    line, column = decision.site.position
    width = len(decision.site.module.source.segment(decision.site.node).split("\n")[0])  # type: ignore[arg-type]
    return text.split("\n")[line - 1][column - 1 : column - 1 + width]


# -- odd files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "# fsdp-migrate: leave",
        "x = 1",
        "x = 1\\\n",
        "\x0cx = 1  # fsdp-migrate: leave\n",
        "if x:\n\ty = 1  # fsdp-migrate: leave\n",
        "def f():\n    return 1\n    # fsdp-migrate: leave\n\n\n",
        'f"{x!r:>{width}}"  # fsdp-migrate: leave\n',
        "x = (  # fsdp-migrate: leave\n)\n",
        "class A: pass  # fsdp-migrate: leave-file\n",
    ],
)
def test_every_file_can_be_read(text: str) -> None:
    said = suppressions.read(text)
    assert len(said.ignores) == text.count("fsdp-migrate: leave")
    assert all(text.split("\n")[i.line - 1][i.column - 1] == "#" for i in said.ignores)


def test_two_comments_on_a_line_are_two() -> None:
    first, second = suppressions.read(
        "x = 1  # fsdp-migrate: leave[FSDP1] see #12 # fsdp-migrate: leave[FSDP2] b  # noqa\n"
    ).ignores
    assert (first.codes, first.reason) == (("FSDP1",), "see #12")
    assert (second.codes, second.reason) == (("FSDP2",), "b")


# -- what check says ------------------------------------------------------------------------------

IGNORED = f"{HEAD}\nmodel = FSDP(net)  # fsdp-migrate: leave[FSDP101] legacy\n"


def test_what_is_ignored_is_no_failure_and_is_counted(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    answer = run("check", ".")
    assert answer.code == 0
    assert answer.out == "1 site: 0 to rewrite, 0 to review, 0 left for you, 1 ignored\n"
    assert "FSDP101" not in answer.out
    assert run("check", "--min-coverage", "100", ".").code == 0
    assert run("check", "--format", "concise", ".").out.count("\n") == 1
    assert run("check", "--format", "github", ".").out.count("::") == 2
    assert run("rewrite", ".").code == 0
    assert (here / "a.py").read_text() == IGNORED


def test_json_says_what_is_ignored(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    document = json.loads(run("check", "--format", "json", ".").out)
    (site,) = document["sites"]
    assert (site["outcome"], site["ignored"]) == ("left", True)
    assert site["message"] == "stays on purpose: legacy"
    assert document["summary"]["left"] == document["summary"]["ignored"] == 1
    assert document["summary"]["coverage"] == 1.0


def test_what_is_held_back_by_it_still_fails(here: Path, run: Command) -> None:
    source = PLAIN.replace("norm_(1.0)", "norm_(1.0)  # fsdp-migrate: leave[FSDP401]")
    (here / "a.py").write_text(source)
    answer = run("check", ".")
    assert answer.code == 1
    assert "held back with a.py:10 (FSDP401), which stays on purpose" in answer.out
    assert "1 left for you, 1 ignored" in answer.out


def test_verbose_lists_what_is_ignored(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    assert "legacy" not in run("rewrite", ".").out
    assert "stays on purpose: legacy" in run("rewrite", "--verbose", ".").out


def test_a_place_that_is_ignored_is_explained(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    assert "stays on purpose: legacy" in run("explain", "a.py:4").out


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# fsdp-migrate: leave[FSDP401]", "there is nothing of the kind here"),
        ("# fsdp-migrate: leave[FSDP101, FSDP3, FSDP4]", "ignores FSDP3, FSDP4, of which"),
        ("# fsdp-migrate: leave[FSDP101, E501]", "'E501' is not the code of a rule"),
        ("# fsdp-migrate: leave[]", "'' is not the code of a rule"),
        ("# fsdp-migrate: leave[FSDP101", "its list of codes has no end"),
        ("# fsdp-migrate: leave-file", "it must stand above the first statement"),
    ],
)
def test_comments_to_no_purpose_are_told(here: Path, run: Command, comment: str, said: str) -> None:
    (here / "a.py").write_text(f"{HEAD}\nmodel = FSDP(net)  {comment}\n")
    answer = run("check", "--format", "concise", ".")
    assert answer.code == 1
    (line,) = (line for line in answer.out.splitlines() if " FSDP990 " in line)
    assert line.startswith("a.py:4:20: FSDP990 this comment ignores ")
    assert said in line


def test_they_are_told_where_no_fsdp1_is_left(here: Path, run: Command) -> None:
    migrated = "from torch.distributed.fsdp import fully_shard\n\nfully_shard(net)"
    (here / "a.py").write_text(f"{migrated}  # fsdp-migrate: leave[FSDP101]\n")
    (here / "b.py").write_text("x = 1\n\n# fsdp-migrate: leave\n\ny = 1\n")
    answer = run("check", ".")
    assert answer.code == 1
    assert answer.out.count("FSDP990") == 2
    assert "it stands above no line of code" in answer.out
    assert "  FSDP990  [ ]" in run("check", "--statistics", ".").out
    assert run("check", "--exit-zero", ".").code == 0
    before = (here / "a.py").read_text()
    assert run("rewrite", ".").code == 0
    assert (here / "a.py").read_text() == before, "reported, not removed"


def test_comments_that_are_needed_are_not_told(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    (here / "b.py").write_text('TEXT = "# fsdp-migrate: leave"\n')
    (here / "c.py").write_text("# fsdp-migrate is great\nx = 1  # fsdp-migrate: please\n")
    (here / "d.py").write_text("x = (  # fsdp-migrate: leave\n")
    answer = run("check", ".")
    assert "FSDP990" not in answer.out
    assert answer.code == 0


def test_rules_that_are_not_selected_make_no_comment_useless(here: Path, run: Command) -> None:
    (here / "a.py").write_text(IGNORED)
    assert "FSDP990" not in run("check", "--select", "FSDP4", ".").out


def test_of_single_files_it_is_not_told(here: Path, run: Command) -> None:
    """Half a project does not show what a comment is for."""
    (here / "build.py").write_text(build("    return FSDP(model)  # fsdp-migrate: leave"))
    (here / "use.py").write_text(
        "from build import build\n\n\ndef fsdp(net):\n"
        "    build(net).clip_grad_norm_(1.0)  # fsdp-migrate: leave[FSDP401]\n"
    )
    assert run("check", ".").code == 0
    assert run("check", "use.py").code == 0
    assert run("check", "build.py", "use.py").code == 0


# -- markers --------------------------------------------------------------------------------------

MARKED = """from torch.distributed.fsdp import fully_shard

# TODO(fsdp-migrate FSDP402): Gradients are accumulated in another type.
fully_shard(net)
TEXT = "# TODO(fsdp-migrate FSDP402): no"
"""


def test_markers_that_stand_in_code_are_counted_and_listed(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MARKED)
    (here / "b.py").write_text("x = 1  # TODO(fsdp-migrate FSDP101): Here too.\n")
    answer = run("check", "--format", "concise", ".")
    assert answer.code == 0
    assert answer.out.splitlines()[:2] == [
        "a.py:3:1: FSDP402 marker: Gradients are accumulated in another type.",
        "b.py:1:8: FSDP101 marker: Here too.",
    ]
    assert "2 markers in the code to settle and remove" in answer.out
    assert "2  markers in code" in run("check", "--statistics", ".").out
    document = json.loads(run("check", "--format", "json", ".").out)
    assert document["summary"]["markers"] == 2
    assert [m["code"] for m in document["markers"]] == ["FSDP402", "FSDP101"]


def test_the_marker_of_a_site_that_is_reported_is_only_counted(here: Path, run: Command) -> None:
    (here / "a.py").write_text(f"{HEAD}\nclass Mine(FSDP):\n    def no_sync(self):\n        pass\n")
    run("rewrite", ".")
    assert "TODO(fsdp-migrate FSDP103)" in (here / "a.py").read_text()
    answer = run("check", ".")
    assert "marker:" not in answer.out
    assert "1 marker in the code to settle and remove" in answer.out


def test_rewrite_says_nothing_of_markers(here: Path, run: Command) -> None:
    (here / "a.py").write_text(MARKED)
    assert run("rewrite", ".").out == "no FSDP1 found in 1 file\n"


def test_other_todos_are_no_markers(here: Path, run: Command) -> None:
    (here / "a.py").write_text(
        "# TODO(fsdp): x\n# TODO: fsdp-migrate FSDP101\n# see TODO(fsdp-migrate FSDP101): x\n"
    )
    assert "marker" not in run("check", ".").out


def test_an_ignored_site_that_needs_nothing_holds_nothing_back() -> None:
    source = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def read(path):
    state = {}
    for name, value in torch.load(path).items():
        # fsdp-migrate: leave[FSDP406]
        state[name.replace("_fsdp_wrapped_module.", "")] = value
    return state


def build(net):
    return FSDP(net)
"""
    result, after = migrate({"example.py": source})
    assert "return fully_shard(net)" in after["example.py"]
    assert not any(d.held for d in result.decisions)
