"""Files that do not mention FSDP, and are read only when a value leads into them."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.analysis.module import Library
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.cli import session
from fsdp_migrate.syntax.source import Source

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def migrated(tree: Path, **files: str) -> str:
    """What becomes of ``main`` among other files, all of them given without their suffix."""
    for name, text in files.items():
        (tree / f"{name}.py").write_text(text)
    run = session.run([tree])
    assert not run.result.problems
    return run.result.changes[tree / "main.py"].decode()


def project(**files: str) -> Project:
    """``main`` as the one module under analysis, the other files as its library."""
    paths = {Path(f"/project/{name}.py"): text for name, text in files.items()}
    main = Path("/project/main.py")
    sources = {p: Source.decode(text.encode(), path=p) for p, text in paths.items()}
    library = Library(frozenset(p for p in paths if p != main), sources.get)
    return Project([sources[main]], library)


def leads_to(name: str, **files: str) -> set[str]:
    """The names outside the project that ``main`` imports as ``name``."""
    found = project(**files)
    (module,) = found.modules
    (binding,) = module.table.module.bindings[name]
    return set(found.canonical(binding.qualified, module))


def test_a_value_that_a_file_makes_is_followed_into_it(tmp_path: Path) -> None:
    after = migrated(
        tmp_path,
        main=IMPORT + "from settings import rate\n\nmodel = FSDP(net, limit_all_gathers=rate())\n",
        settings="def rate():\n    return True\n",
    )
    assert "fully_shard(net)" in after


def test_a_name_that_is_only_handed_on_leads_further() -> None:
    assert leads_to("wrap", main="from a import wrap\n", a="from torch.nn import wrap\n") == {
        "torch.nn.wrap"
    }


def test_a_name_of_the_files_own_leads_nowhere() -> None:
    assert leads_to("wrap", main="from a import wrap\n", a="def wrap(): ...\n") == set()


def test_a_name_that_is_defined_where_the_import_fails_leads_both_ways() -> None:
    own = "try:\n    from fast import wrap\nexcept ImportError:\n    wrap = None\n"
    assert leads_to("wrap", main="from a import wrap\n", a=own) == {"fast.wrap"}


def test_a_definition_does_not_hide_an_import_of_the_same_name() -> None:
    own = "def wrap(): ...\n\n\nif FAST:\n    from fast import (\n        wrap,\n    )\n"
    assert leads_to("wrap", main="from a import wrap\n", a=own) == {"fast.wrap"}


def test_a_definition_does_not_hide_what_a_star_may_bring() -> None:
    own = "from b import *\n\n\ndef other(): ...\n"
    files = {"main": "from a import wrap\n", "a": own, "b": "from torch.nn import wrap\n"}
    assert leads_to("wrap", **files) == {"torch.nn.wrap"}


def test_a_file_that_is_no_python_is_no_problem_of_ours(tmp_path: Path) -> None:
    after = migrated(
        tmp_path,
        main=IMPORT + "from old import build\n\nmodel = build()\nmodel = FSDP(model)\n",
        old='def build():\n    print "building"\n',
    )
    assert "model = fully_shard(model)" in after


def test_what_cannot_be_parsed_is_not_there_when_its_code_is_asked_for() -> None:
    found = project(main="import a\n", a="def wrap(:\n")
    assert found.load(Path("/project/a.py")) is None
