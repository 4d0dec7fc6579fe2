"""What a rule is, and where rules come from.

A bundled rule is a page in Markdown, whose examples are its tests, and beside it a module with
``RULE``, its data, and ``decide``, its code. A user's own rule may be one file: the page in its
docstring, the examples in ``EXAMPLES`` and ``KEEP``. Both are loaded by path.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from fsdp_migrate.errors import InputError
from fsdp_migrate.fsdp1.construct import ANY, Construct
from fsdp_migrate.planning import pages
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.pages import bundled

if TYPE_CHECKING:
    from fsdp_migrate.analysis.module import Module
    from fsdp_migrate.fsdp1.site import Site
    from fsdp_migrate.planning.hazard import Hazard
    from fsdp_migrate.planning.model import Constructor, Decision

__all__ = [
    "CODE",
    "Decide",
    "Example",
    "Finder",
    "Keep",
    "LoadedRule",
    "Outcome",
    "Registry",
    "Rule",
    "RuleError",
    "load",
    "load_file",
]

CODE = re.compile(r"FSDP\d{3}")


PYTHON = "python"


class RuleError(InputError):
    """A rule file is not what a rule must be. The message names the file."""


# Both are given the study, which knows rules and so cannot be named here.
InFile = Callable[[Any, "Module"], Iterable["Site"]]
InProject = Callable[[Any], Iterable["Site"]]
OfConstructor = Callable[["Constructor", Any], Iterable["Site"]]
Hazards = Callable[[Any, "Module"], Iterable["Hazard"]]


@dataclass(frozen=True)
class Finder:
    """A search for what no FSDP1 name leads to: what code does to a model, or to its parameters.

    ``in_file`` is asked for every file, ``in_project`` once, after all files. ``order`` says when,
    among all rules' finders. Only projects that make models are searched, unless ``always``.
    ``of_constructor`` gives those sites that are decided together with a constructor.
    """

    order: int
    in_file: InFile | None = None
    in_project: InProject | None = None
    of_constructor: OfConstructor | None = None
    always: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The data of a rule.

    ``handles`` names the constructs the rule answers for: ``FullyShardedDataParallel()`` is the
    constructor, ``FullyShardedDataParallel(device_id=)`` one of its arguments,
    ``FullyShardedDataParallel.no_sync`` a method or static, ``MixedPrecision`` any other name. A
    rule that handles nothing tells of ``hazards`` in code that uses FSDP2, or documents a code that
    the engine itself gives.
    """

    code: str
    name: str
    handles: tuple[str, ...]
    since: str = "2.6"  # the oldest torch the emitted code runs on
    finders: tuple[Finder, ...] = ()  # of sites that it handles
    near: tuple[str, ...] = ()  # names of FSDP1's, or of finders, that only imports bring to models
    hazards: Hazards | None = None  # asked of each file of a project that calls fully_shard


@dataclass(frozen=True, kw_only=True)
class Example:
    """A documented, tested rewrite. ``files`` are further modules, by relative path."""

    title: str
    before: str
    after: str
    outcome: Outcome = Outcome.REWRITTEN
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # path -> before, after
    support: tuple[str, ...] = ()  # support module functions the result uses
    language: str = PYTHON


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Source that must come back byte for byte, apart from markers when the site is left."""

    title: str
    source: str
    left: bool = False  # an FSDP1 site that is left, as opposed to no site at all
    language: str = PYTHON


# Of a site and the study it is part of, which knows rules and so cannot be named here.
Decide = Callable[["Site", Any], "Decision"]


@dataclass(frozen=True)
class LoadedRule:
    rule: Rule
    module: ModuleType = field(repr=False)
    path: Path

    @property
    def code(self) -> str:
        return self.rule.code

    @cached_property
    def decide(self) -> Decide:
        function: Decide = self.module.decide
        return function

    @cached_property
    def examples(self) -> Sequence[Example]:
        """Rewrites; what a page shows of a hazard is none, and among ``all_examples``."""
        if self.rule.hazards is not None:
            return []
        if not pages.has_file(self.path):
            return self.module.EXAMPLES  # type: ignore[no-any-return]
        return [each for each in self.all_examples if each.language == PYTHON]

    @cached_property
    def all_examples(self) -> Sequence[Example]:
        """Those about configurations, and of hazards, included."""
        if not pages.has_file(self.path):
            return self.examples
        return [_example(block) for block in pages.page_of(self.path).blocks[pages.EXAMPLES]]

    @cached_property
    def keep(self) -> Sequence[Keep]:
        if not pages.has_file(self.path):
            return self.module.KEEP  # type: ignore[no-any-return]
        return [each for each in self.all_keeps if each.language == PYTHON]

    @cached_property
    def all_keeps(self) -> Sequence[Keep]:
        """Those about configurations included."""
        if not pages.has_file(self.path):
            return self.keep
        blocks = pages.page_of(self.path).blocks[pages.KEEPS]
        return [
            Keep(
                title=block.title,
                source=block.sources[""],
                left="Outcome" in block.facts,
                language=_language(block),
            )
            for block in blocks
        ]


def _example(block: pages.Block) -> Example:
    """An example as its page shows it."""
    sources, facts = block.sources, block.facts
    further = [label.removesuffix(" before") for label in sources if label.endswith(" before")]
    return Example(
        title=block.title,
        before=sources["Before"],
        after=sources.get("After", ""),  # not written yet
        outcome=Outcome(facts.get("Outcome", Outcome.REWRITTEN.value)),
        files={
            name.strip("`"): (sources[f"{name} before"], sources.get(f"{name} after", ""))
            for name in further
        },
        support=tuple(name for name in facts.get("Support", "").split(", ") if name),
        language=_language(block),
    )


def _language(block: pages.Block) -> str:
    """The language of a block's first source; further files have suffixes of their own."""
    return PYTHON if PYTHON in block.languages else next(iter(sorted(block.languages)), PYTHON)


@dataclass
class Registry:
    rules: dict[str, LoadedRule]

    @cached_property
    def by_construct(self) -> dict[Construct, LoadedRule]:
        handled = ((spelled, r) for r in self.rules.values() for spelled in r.rule.handles)
        return {Construct.parse(spelled): loaded for spelled, loaded in handled}

    @cached_property
    def near(self) -> frozenset[str]:
        """Names of what gets to no model that no import leads to."""
        return frozenset(name for loaded in self.rules.values() for name in loaded.rule.near)

    def finders(self, *, makes_models: bool) -> list[Finder]:
        """The finders to be asked of a project, in their order."""
        every = (f for loaded in self.rules.values() for f in loaded.rule.finders)
        return sorted((f for f in every if makes_models or f.always), key=lambda f: f.order)

    def find(self, construct: Construct) -> LoadedRule | None:
        """The rule for a construct, or for a wider one."""
        found = (self.by_construct.get(wider) for wider in construct.wider())
        return next(filter(None, found), None)

    def rule_for(self, construct: Construct) -> LoadedRule:
        """The rule for a construct, or the one for all that has no other."""
        return self.find(construct) or self.by_construct[ANY]


def load(directories: Iterable[Path] = ()) -> Registry:
    """Every rule of the bundled directory and of ``directories``, in order of code.

    Raises:
        RuleError: a file is not a rule, or two rules share a code or a construct.
    """
    rules: dict[str, LoadedRule] = {}
    claimed: dict[str, str] = {}
    own = (each for directory in directories for each in _rules(directory))
    # Wrapped anew: what a run finds out about a rule is not for the next one.
    ours = (LoadedRule(r.rule, r.module, r.path) for r in _bundled(bundled()))
    for loaded in (*ours, *own):
        path = loaded.path
        if loaded.code in rules:
            raise RuleError(f"{path}: {loaded.code} is taken by {rules[loaded.code].path.name}")
        for construct in loaded.rule.handles:
            if construct in claimed:
                raise RuleError(f"{path}: {construct} is handled by {claimed[construct]}")
            claimed[construct] = loaded.code
        rules[loaded.code] = loaded
    return Registry(rules)


@cache
def _bundled(directory: Path) -> list[LoadedRule]:
    """The rules that ship with the tool: they are the same for every run of a process."""
    return list(_rules(directory))


def _rules(directory: Path) -> Iterator[LoadedRule]:
    if not directory.is_dir():
        raise RuleError(f"{directory}: no such directory of rules")
    for path in pages.modules(directory):
        yield load_file(path)


class _Uncached(importlib.machinery.SourceFileLoader):
    """Runs the source that stands there: a compiled file beside it may hold something else."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_file(path: Path) -> LoadedRule:
    """One rule file, imported by path under a private module name."""
    name = f"_fsdp_migrate_rules.{path.stem}"
    loader = _Uncached(name, str(path)) if path.parent != bundled() else None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a rule that ends the process is one that cannot be loaded
        del sys.modules[name]
        raise RuleError(f"{path}: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, "RULE", None)
    if not isinstance(found, Rule):
        raise RuleError(f"{path}: has no RULE")
    if not CODE.fullmatch(found.code) or not path.stem.startswith(f"{found.code}_"):
        raise RuleError(f"{path}: the file name must start with the rule's code, {found.code}")
    if found.handles and not callable(getattr(module, "decide", None)):
        raise RuleError(f"{path}: has no decide()")
    return LoadedRule(found, module, path)
