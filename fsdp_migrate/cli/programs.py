"""The programs that are trained: scripts, or functions that the project names."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.cli import config
from fsdp_migrate.cli.options import Extent
from fsdp_migrate.cli.trees import locate_script, scratch_directory
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.verify.entries import DRIVER, TABLE, Entries, EntryError
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.settings import LEAST_STEPS, MOST_STEPS, Settings


@dataclass(frozen=True)
class Program:
    """A program of the project at ``tree``, and how far it is trained."""

    tree: Path
    script: str
    workdir: str
    extent: dict[str, Any]
    """Fields of :class:`Plan`."""
    shown: str = ""
    """What it is called where it has no script."""
    added: dict[str, Any] = field(default_factory=dict)
    """Further fields of :class:`Plan`, of a program that the project names by its functions."""

    def plan(self, settings: Settings, *, before: Path, after: Path) -> Plan:
        """How its versions in two trees are compared.

        Raises:
            PlanError: what was asked cannot be done.
        """
        return Plan(
            **{f.name: getattr(settings, f.name) for f in dataclasses.fields(Settings)},
            **self.extent,
            **self.added,
            before=before.absolute(),
            after=after.absolute(),
            script=self.script,
            workdir=self.workdir,
        )


def find(script: str | None, asked: Extent, home: Path | None, stack: ExitStack) -> Program:
    """The program that ``script`` names, in the tree ``home`` or in its own project; without a
    script, the one whose functions the project of the working directory names.

    Raises:
        InputError: there is none.
    """
    if script is not None:
        tree, name, workdir = locate_script(script, home)
        return Program(tree, name, workdir, _extent(asked, None))
    entries = _entries()
    tree = home.absolute() if home is not None else config.project_root(Path.cwd())
    added: dict[str, Any] = {"files": scratch_directory(stack), "variants": entries.variants}
    entries.write(added["files"])
    shown = f"{entries.model}, sharded by {entries.shard}"
    return Program(tree, DRIVER, entries.path, _extent(asked, entries), shown, added)


def _extent(asked: Extent, entries: Entries | None) -> dict[str, Any]:
    ranks, steps, grow_after = asked.nproc, asked.steps, None
    if entries is not None:
        ranks = ranks or ((entries.nproc,) if entries.nproc else ())
        steps = steps or entries.steps or LEAST_STEPS
    if steps is None and asked.resume is not None:
        steps = LEAST_STEPS  # a program that resumes from its very end would train no further
    elif steps is None:
        steps, grow_after = MOST_STEPS, LEAST_STEPS
    nproc, *worlds = ranks or (2,)
    return {
        "nproc": nproc,
        "worlds": tuple(worlds),
        "max_steps": steps,
        "grow_after": grow_after,
    }


def _entries() -> Entries:
    """What the project of the working directory names in the place of a script."""
    root = config.project_root(Path.cwd())
    table = config.verify_table(root)
    path = config.shown(root / "pyproject.toml")
    if not table:
        raise ConfigError(f"give a SCRIPT, or name functions in {TABLE} of {path}")
    try:
        return Entries.read(table)
    except EntryError as error:
        raise ConfigError(f"{path}: {error}") from None
