"""What ``explain`` does: rule pages, the table of rules, the sites of one line.

It must answer at once: nothing heavy is imported unless a place is asked about.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate import shown
from fsdp_migrate.cli import console
from fsdp_migrate.cli.exit_codes import BAD, GOOD, SEE
from fsdp_migrate.cli.options import Explain
from fsdp_migrate.errors import InputError
from fsdp_migrate.planning.pages import Page, own_directories, pages

PLACE = re.compile(
    r"(.+?\.(?:pyi?|ipynb|ya?ml|json|sh|bash|slurm|sbatch|env)|(?:.*/)?(?:\.env|\w+file))"
    r"(?::cell (\d+))?:(\d+)(?::\d+)?"
)


class UnknownTopic(Exception):
    """Nothing is known by that name; the message gives the nearest ones."""


def table(directories: Sequence[Path] = ()) -> str:
    """Code, name and summary of every rule."""
    found = pages(directories)
    width = max(len(p.name) for p in found)
    return "".join(f"{p.code}  {p.name:<{width}}  {p.summary}\n" for p in found)


def page(topic: str, directories: Sequence[Path] = ()) -> str:
    """The page of a rule, by code, by name, or by an FSDP1 name it handles.

    Raises:
        UnknownTopic: no rule by that name.
    """
    found = pages(directories)
    wanted = topic.strip().strip("=").removeprefix("FSDP.").lower()
    for each in found:
        if wanted in {each.code.lower(), each.name.lower()}:
            return render(each)
    for each in found:
        if wanted in {name.lower() for name in each.topics}:
            return render(each)
    known = {name for p in found for name in (p.code, p.name, *p.topics)}
    near = difflib.get_close_matches(topic, sorted(known), n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "; 'explain' alone lists the rules"
    raise UnknownTopic(f"no rule is called {topic!r}{hint}")


def render(page_: Page) -> str:
    """A page as plain text: title, sections, the first example."""
    title = f"{page_.code} {page_.name}"
    parts = [f"{title}\n{'=' * len(title)}\n{page_.summary}.\n", page_.body]
    example = page_.example()
    if example is not None:
        before, after = (_indented(text) for text in example)
        parts.append(f"## Example\nBefore:\n\n{before}\n\nAfter:\n\n{after}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip("\n").split("\n"))


def find_place(topic: str) -> tuple[Path, int, int] | None:
    """``train.py:41`` -> path, 0 and line, ``train.ipynb:cell 3:1`` -> path, cell and line; None if
    the topic is no place."""
    found = PLACE.fullmatch(topic)
    if found is None:
        return None
    return Path(found.group(1)), int(found.group(2) or 0), int(found.group(3))


def explain(asked: Explain) -> int:
    """A rule's page, the table of rules, or what would happen at one place."""
    place = find_place(asked.topic) if asked.topic is not None else None
    if place is not None:
        from fsdp_migrate.cli import trust

        start = Path.cwd() / place[0]
        return trust.run_command(
            start, asked.trust_rules, lambda: _explain_place(*place, trust_rules=asked.trust_rules)
        )
    try:
        directories = _rule_paths()
    except InputError as error:
        console.problem(str(error))
        return BAD
    if asked.topic is None:
        console.out(table(directories))
        return GOOD
    try:
        console.out(page(asked.topic, directories))
    except UnknownTopic as error:
        console.problem(str(error))
        return BAD
    return GOOD


def _rule_paths() -> Sequence[Path]:
    """The project's own rule directories, read without the weight of the whole configuration.

    Raises:
        ConfigError: one leads out of the project.
    """
    from fsdp_migrate.discovery import project_paths

    for directory in (Path.cwd(), *Path.cwd().parents):
        pyproject = directory / "pyproject.toml"
        if pyproject.is_file():
            from fsdp_migrate import toml

            try:
                data = toml.loads(project_paths.read_regular_file(pyproject))
                names = list(map(str, data["tool"]["fsdp-migrate"]["rule-paths"]))
            except (OSError, ValueError, KeyError, TypeError):
                return []  # the commands that depend on it complain
            origin = "pyproject.toml: [tool.fsdp-migrate]"
            return own_directories(directory, names, origin)
        if (directory / ".git").exists():
            break
    return []


def _explain_place(path: Path, cell: int, line: int, *, trust_rules: bool) -> int:
    """Every site and hazard of a line with the pages of their rules, as a check has them."""
    from fsdp_migrate import report
    from fsdp_migrate.cli import session
    from fsdp_migrate.discovery import project_paths
    from fsdp_migrate.planning.outcome import place
    from fsdp_migrate.report import text

    try:
        given = session.start([path])
        home = project_paths.project_root(given.parent)
        if given.is_relative_to(here := Path.cwd()) and (home is None or here.is_relative_to(home)):
            home = here
        with console.waiting("checking"):
            run = session.run(
                [home or given.parent, given],
                edit=False,
                jobs=session.cores(),
                trust_rules=trust_rules,
                configs=None,
                hazards=True,
            )
    except InputError as error:
        console.problem(str(error))
        return BAD
    name = run.found.display(given)
    total = report.printable_summary(report.summary(run.result))
    every: list[report.Event | report.Remark]
    every = [*report.printable(report.events(run.result)), *total.hazards, *total.possible]
    own = [e for e in every if (e.path, e.cell) == (shown.path(name), cell)]
    found = [e for e in own if e.line == line]
    found = found or [e for e in own if e.line <= line <= (e.end_line or e.line)]
    if not found:
        console.note(f"{place(shown.path(str(path)), line, cell)}: nothing of FSDP1 here")
        return GOOD
    for event in found:
        console.out("\n".join(text.block(event)) + "\n\n")
    for code in dict.fromkeys(e.code for e in found):
        try:
            console.out(page(code, run.config.rule_paths))
        except UnknownTopic:
            continue  # a code without a page: held back with another site
    return SEE
