"""A run of the original, for what the code leaves open: what ``migrate`` knows before it writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdp_migrate.attempts.search import Forms
from fsdp_migrate.cli.options import Migrate
from fsdp_migrate.cli.programs import Program
from fsdp_migrate.cli.session import Run
from fsdp_migrate.cli.study import known_sites
from fsdp_migrate.fsdp1 import api
from fsdp_migrate.planning.forms import AS_SEEN
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.seen import MODEL, SEEN, Construction, Facts, Place, Seen, Values
from fsdp_migrate.verify import run as verification
from fsdp_migrate.verify.compare.observed import Observed, Span, Use
from fsdp_migrate.verify.compare.sites import Study, account
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report.progress import Progress


def asking(programs: Sequence[Program], asked: Seen, tree: Path) -> list[Program]:
    """The programs, whose runs look at what was ``asked`` about."""
    places = {
        path.relative_to(tree).as_posix(): sorted(spans)
        for path, spans in asked.asked.items()
        if path.is_relative_to(tree)
    }
    return [
        dataclasses.replace(each, added={**each.added, "asked": places}) if places else each
        for each in programs
    ]


def observe(
    programs: Sequence[Program],
    asked: Migrate,
    run: Run,
    seen: Seen,
    cache: Path,
    server: WarmServer,
) -> Seen | None:
    """What the programs did, if it says more than the code did for ``run``; None as well where one
    of them does not tell: whatever is wrong with it is said by the first attempt, for which the
    recordings in ``cache`` serve again."""
    tree = programs[0].tree
    runs: list[Observed] = []
    settings = dataclasses.replace(asked, cache=cache)
    for program in programs:
        plan = program.plan(settings, before=tree, after=tree)
        with Progress(plan.max_steps) as progress:
            observed = verification.observe(plan, on_event=progress, server=server)
        if observed is None or observed.problems:
            return None
        runs.append(observed)
    sites = [site for d in run.result.decisions for site in known_sites(d, tree)]
    study = Study(tree, tuple(sites))
    unseen = any(account(observed, study).unseen for observed in runs)
    return Seen(facts(runs, tree)) if unseen or seen.wanted else None


def rests_on(run: Run, seen: Seen, taken: Forms) -> Iterator[str]:
    """What of a result in these forms rests on what the original was seen to do, place by place."""
    found = {
        (run.found.display(d.site.module.path), d.site.position[0], d.message)
        for d in run.result.decisions
        if f"({SEEN}: " in d.message and d.outcome is not Outcome.LEFT
    }
    no_more = {
        (run.found.display(path), line)
        for other in taken.taken
        for (path, (line, _)), form in other.passed_over
        if form == AS_SEEN
    }
    dismissed = {each for each in seen.dismissed if each[:2] not in no_more}
    for file, line, what in sorted({*found, *dismissed}):
        yield f"{file}:{line}: {what}"


def facts(runs: Sequence[Observed], tree: Path) -> Facts:
    """What several runs showed together."""
    values: dict[Place, Values] = {}
    constructions: dict[tuple[Path, int], Construction] = {}
    called: dict[tuple[Path, int, str], bool] = {}
    for run in runs:
        made = {each.number: (tree / each.file, each.span.line) for each in run.made}
        for each in run.made:
            place = made[each.number]
            known = constructions.get(place, Construction(frozenset(), frozenset()))
            constructions[place] = Construction(
                known.classes | {each.module}, known.buffers | set(each.buffers)
            )
        for value in run.seen:
            at = tree / value.file, _numbers(value.span)
            before = values.get(at, Values(frozenset()))
            plain = before.plain | {value.value}
            values[at] = Values(
                before.kinds | {value.kind},
                tuple(sorted({*before.classes, *filter(None, [value.class_])})),
                plain,
                before.made_at | {made[number] for number in value.models if number in made},
            )
        for use in run.uses:
            makers = {made[number] for number in use.models if number in made}
            if makers and not use.through and use.what not in api.STATICS:
                # Where FSDP1's own method was read, whether or not the rewriter knew.
                receiver = tree / use.file, _receiver(use)
                before = values.get(receiver, Values(frozenset({MODEL})))
                values[receiver] = dataclasses.replace(before, made_at=before.made_at | makers)
            key = tree / use.file, use.span.line, use.what
            called[key] = called.get(key, True) and len(use.ranks) == run.world > 1
    # Of what was no plain value even once, none is known.
    values = {
        at: dataclasses.replace(v, plain=frozenset()) if "" in v.plain else v
        for at, v in values.items()
    }
    return Facts(values, constructions, frozenset(key for key, every in called.items() if every))


def _receiver(use: Use) -> tuple[int, int, int, int]:
    """Where ``net`` stands in ``net.state_dict``, as it is written as a rule."""
    line, column, last, last_column = _numbers(use.span)
    return line, column, last, last_column - len(use.what) - 1


def _numbers(span: Span) -> tuple[int, int, int, int]:
    return span.line, span.column, span.last, span.last_column
