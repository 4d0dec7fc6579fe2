"""Every example of every rule, and what must hold for each of them in any dress."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate import runtime
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning import pages, support_library
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, LoadedRule
from fsdp_migrate.rewriting import patch
from tests.helpers import binding
from tests.helpers.migrating import (
    REGISTRY,
    ROOT,
    migrate_once,
    outcomes,
    support_functions,
    unmarked,
    without_support,
    worst,
)

RULES = list(REGISTRY.rules.values())
EXAMPLES = [(r, e) for r in RULES for e in r.examples]
KEEPS = [(r, k) for r in RULES for k in r.keep]
WITHOUT_EXAMPLES = {"FSDP501", "FSDP570", "FSDP990"}  # about no sites, or writing nothing


def name(value: object) -> str:
    if isinstance(value, (Example, Keep)):
        return value.title
    return value.code if isinstance(value, LoadedRule) else ""


every_example = pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
every_keep = pytest.mark.parametrize(("rule", "keep"), KEEPS, ids=name)


def sources(example: Example) -> dict[str, str]:
    return {"example.py": example.before, **{p: b for p, (b, _) in example.files.items()}}


def expected(example: Example) -> dict[str, str]:
    return {"example.py": example.after, **{p: a for p, (_, a) in example.files.items()}}


@every_example
def test_becomes_what_the_page_says(rule: LoadedRule, example: Example) -> None:
    result, after = migrate_once(sources(example))
    assert not result.problems
    assert without_support(after) == expected(example)
    assert worst(result) is example.outcome
    assert rule.code in {d.code for d in result.decisions}, "the example does not show its rule"


@every_example
def test_support_functions_are_the_stated_ones(rule: LoadedRule, example: Example) -> None:
    _, after = migrate_once(sources(example))
    written = after.get("fsdp2_support.py", "")
    defined = set(re.findall(r"^(?:def|class) (\w+)", written, re.MULTILINE))
    assert set(example.support) == support_functions(after)
    assert set(example.support) <= defined


@every_example
def test_a_second_run_changes_nothing(rule: LoadedRule, example: Example) -> None:
    _, after = migrate_once(sources(example))
    result, again = migrate_once(after)
    assert not result.changes
    assert again == after


@every_example
def test_the_result_compiles_and_binds_every_name(rule: LoadedRule, example: Example) -> None:
    _, after = migrate_once(sources(example))
    for path, text in after.items():
        compile(text, path, "exec")
    assert binding.complaints(sources(example), after) == []


@every_example
def test_line_endings_are_kept(rule: LoadedRule, example: Example) -> None:
    crlf = {p: t.replace("\n", "\r\n") for p, t in sources(example).items()}
    _, after = migrate_once(crlf)
    wanted = {p: t.replace("\n", "\r\n") for p, t in expected(example).items()}
    assert without_support(after) == wanted


def tabbed(text: str) -> str:
    return re.sub(r"^(?: {4})+", lambda m: "\t" * (len(m[0]) // 4), text, flags=re.MULTILINE)


@every_example
def test_tabs_are_kept(rule: LoadedRule, example: Example) -> None:
    if not re.search(r":\n {4}", example.before):
        return  # nothing in it says how the file indents
    _, after = migrate_once({p: tabbed(t) for p, t in sources(example).items()})
    assert without_support(after) == {p: tabbed(t) for p, t in expected(example).items()}


def nested(text: str) -> str:
    lines = [f"    {line}" if line else "" for line in text.rstrip("\n").split("\n")]
    return "if enabled():\n" + "\n".join(lines) + "\n"


@every_example
def test_deeper_nesting_changes_only_the_indent(rule: LoadedRule, example: Example) -> None:
    defined = {getattr(n, "name", "") for n in ast.parse(example.after).body}
    if defined & support_library.definitions().keys():
        return  # nothing stands above the first definition where there is none at the top
    files = sources(example) | {"example.py": nested(example.before)}
    _, after = migrate_once(files, Options(line_length=104))
    wanted = expected(example) | {"example.py": nested(example.after)}
    assert {p: t for p, t in without_support(after).items() if p == "example.py"} == {
        "example.py": wanted["example.py"]
    }


ALIASED = "FullyShardedDataParallel as FSDP"


@every_example
def test_the_class_under_its_own_name(rule: LoadedRule, example: Example) -> None:
    if ALIASED not in example.before or re.search(r"\bFSDP\b", example.after):
        return
    plain = re.sub(r"\bFSDP\b", "FullyShardedDataParallel", example.before)
    plain = plain.replace("FullyShardedDataParallel as FullyShardedDataParallel", ALIASED[:24])
    _, after = migrate_once(sources(example) | {"example.py": plain})
    assert without_support(after) == expected(example)


@pytest.mark.parametrize(
    ("statement", "reference"),
    [
        ("import torch.distributed.fsdp as fsdp1", "fsdp1.FullyShardedDataParallel"),
        ("import torch.distributed.fsdp", "torch.distributed.fsdp.FullyShardedDataParallel"),
        (
            "from torch.distributed import fsdp as sharding",
            "sharding.FullyShardedDataParallel",
        ),
        (
            "from torch.distributed.fsdp.fully_sharded_data_parallel import "
            "FullyShardedDataParallel as Wrapper",
            "Wrapper",
        ),
    ],
)
@every_example
def test_other_spellings_end_alike(
    rule: LoadedRule, example: Example, statement: str, reference: str
) -> None:
    line = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    if line not in example.before or example.outcome is Outcome.LEFT:
        return
    head, _, tail = example.before.partition(line)
    source = head + statement + "\n" + re.sub(r'\bFSDP\b(?!" in )', reference, tail)
    plain, _ = migrate_once(sources(example))
    result, after = migrate_once(sources(example) | {"example.py": source})
    assert not result.problems
    assert outcomes(result) == outcomes(plain)
    compile(after["example.py"], "example.py", "exec")
    assert "FullyShardedDataParallel" not in after["example.py"]
    assert not migrate_once(after)[0].changes


@every_keep
def test_comes_back_byte_for_byte(rule: LoadedRule, keep: Keep) -> None:
    result, after = migrate_once({"example.py": keep.source})
    assert set(after) == {"example.py"}
    if keep.left:
        assert result.decisions
        assert all(d.outcome is Outcome.LEFT for d in result.decisions)
        assert unmarked(after["example.py"]) == keep.source
        harmless = {"FSDP100"}  # an import that nothing uses
        marked = {d.code for d in result.decisions} - harmless
        assert bool(marked) == ("# TODO(fsdp-migrate FSDP" in after["example.py"])
        assert not migrate_once(after)[0].changes, "the marker must not be added twice"
    else:
        assert not result.decisions
        assert not result.changes


def test_the_dry_run_of_all_examples_is_a_patch_git_applies(tmp_path: Path) -> None:
    before: dict[Path, bytes] = {}
    after: dict[Path, bytes] = {}
    for index, (_, example) in enumerate(EXAMPLES):
        result, _ = migrate_once(sources(example))
        place = ROOT / f"example {index}"
        for path, text in sources(example).items():
            before[place / path] = text.encode()
        for path, new in result.changes.items():
            after[place / path.relative_to(ROOT)] = new
    for path, data in before.items():
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    old = {p: d for p, d in before.items() if p in after}
    text = patch.patch(ROOT, old, after)
    subprocess.run(["git", "apply", "-"], input=text, cwd=tmp_path, check=True)
    for path, data in {**before, **after}.items():
        assert (tmp_path / path.relative_to(ROOT)).read_bytes() == data


# -- the rule files themselves --------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_rule_is_documented_and_restrained(rule: LoadedRule) -> None:
    page = next(p for p in pages.pages() if p.code == rule.code)
    assert page.summary
    missing = [heading for heading in pages.HEADINGS if not page.section(heading)]
    assert not missing, f"{rule.code}.md has no {missing}"
    needed = max(3, len(rule.all_examples))
    assert len(rule.all_keeps) >= needed, (
        f"{rule.code}.md needs {needed} keeps: one for each example"
    )
    if rule.rule.handles != ("*",) and rule.code not in WITHOUT_EXAMPLES:
        assert len(rule.all_examples) >= 3


def test_titles_are_unique_within_a_rule() -> None:
    for rule in RULES:
        titles = [e.title for e in (*rule.all_examples, *rule.all_keeps)]
        assert len(titles) == len(set(titles)), rule.code


def test_every_support_function_is_documented_and_shown() -> None:
    library = Path(runtime.__file__).with_name("fsdp2_support.py")
    tree = ast.parse(library.read_text())
    public = [
        n
        for n in tree.body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")
    ]
    assert all(ast.get_docstring(n) for n in public)
    shown = {f for _, example in EXAMPLES for f in example.support}
    shown |= {f for _, example in EXAMPLES for f in re.findall(r"(?m)^def (\w+)", example.after)}
    by_evidence = {"AgreeingGradScaler", "zero_unused_gradients"}  # where a run shows the need
    assert {n.name for n in public} - {"reshard_parameters"} - by_evidence <= shown
