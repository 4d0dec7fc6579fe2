"""Configurations through the engine, with a framework of the tests' own or with the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.configurations import engine
from fsdp_migrate.configurations.settings import Change, Migrate, Settings
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.result import Configured, Problem

ROOT = Path("/project")
NAMES = {"yaml": "config.yaml", "json": "fsdp.json", "sh": "run.sh"}  # files of examples
STRATEGIES = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
DEAD = ("fsdp_backward_prefetch", "fsdp_use_orig_params")


def stand_in(settings: Settings) -> list[Change]:
    """A framework that has a little of everything: replaced, removed, added, to review, left."""
    if "fsdp_version" in settings:
        return []
    found = [Change(Outcome.REWRITTEN, "is FSDP2", "", ("fsdp_version", 2))]
    strategy = settings.get("fsdp_sharding_strategy")
    if strategy is not None:
        reshard = STRATEGIES.get(str(strategy.value))
        if strategy.unknown or reshard is None:
            why = strategy.unknown or "nothing is like it"
            found.append(Change(Outcome.LEFT, why, strategy.name, help="use another"))
        else:
            new = ("fsdp_reshard_after_forward", reshard)
            found.append(Change(Outcome.REWRITTEN, "is", strategy.name, new))
    for name in DEAD:
        if name in settings:
            found.append(Change(Outcome.REWRITTEN, "nobody needs it", name))
    if "fsdp_state_dict_type" in settings:
        name, value = "fsdp_state_dict_type", settings["fsdp_state_dict_type"].value
        found.append(Change(Outcome.REVIEW, "may be big", name, (name, value)))
    return found


@dataclass
class Written:
    found: list[Configured]
    problems: list[Problem]
    after: dict[str, str]

    def worst(self) -> Outcome | None:
        order = [Outcome.REWRITTEN, Outcome.REVIEW, Outcome.LEFT]
        return max(self.outcomes(), key=order.index, default=None)

    def outcomes(self) -> set[Outcome]:
        return {each.outcome for each in self.found}

    @property
    def text(self) -> str:
        """The contents of the only file."""
        (text,) = self.after.values()
        return text


def write(
    files: dict[str, str],
    migrate: Migrate | None = stand_in,
    width: int = 100,
    sources: dict[Path, bytes] | None = None,
    installed: tuple[int, ...] = (),
) -> Written:
    """What becomes of files. ``migrate`` None: what the frameworks say, in the release that is
    ``installed``."""
    data = {ROOT / path: text.encode() for path, text in files.items()}
    read = engine.read(
        data,
        lambda path: str(path.relative_to(ROOT)),
        ROOT,
        pinned=lambda name, path: installed,
        sources=sources,
    )
    chosen = None if migrate is None else lambda code: migrate
    found, changes = read.decide(width, lambda code, key: "", chosen)
    after = {
        path: changes[ROOT / path].decode() if ROOT / path in changes else text
        for path, text in files.items()
    }
    return Written(found, read.problems, after)


def write_one(text: str, name: str = "config.yaml", migrate: Migrate | None = stand_in) -> Written:
    """What becomes of one file."""
    return write({name: text}, migrate)


def unmarked(text: str) -> str:
    """A text without our markers."""
    kept = []
    within = False
    for line in text.splitlines(keepends=True):
        bare = line.lstrip("\ufeff \t")
        within = bare.startswith("# TODO(fsdp-migrate") or (within and bare.startswith("#     "))
        if not within:
            kept.append(line)
    return "".join(kept)
