"""Pages of the site that stand outside of docs/, and links that lead there: a hook of mkdocs.

The page of a rule is its file in rules/, those of the project are files at the root, and the skill
of agents has a folder of its own. Nothing is copied into the repository: they are read when the
site is built.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
BESIDE_DOCS = {  # by their names on the site
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "skill.md": "skills/fsdp-migrate/SKILL.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
NOWHERE = re.compile(r"\[([^\]]*)\]\(/(?:blob|tree)/main/[^)]*\)")  # before there is an address
FENCE = re.compile(r"(?ms)^( *)(`{3,}).*?^\1\2 *$")
PAIR = re.compile(
    r"^(?P<name>`[^`\n]+` )?[Bb]efore:\n\n(?P<before>```.*?^```)\n\n"
    r"(?:`[^`\n]+` )?[Aa]fter:\n\n(?P<after>```.*?^```)",
    re.MULTILINE | re.DOTALL,
)
CLOSED_FROM = 2  # examples that can be read without opening them


def rules() -> dict[str, list[Path]]:
    """The pages of rules by family, in the order of their codes."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "rules").glob("*/FSDP[0-9][0-9][0-9]_*.md")):
        found.setdefault(path.parent.name, []).append(path)
    return found


def uri(rule: Path) -> str:
    """Where the page of a rule stands on the site."""
    return f"rules/{rule.name[:7]}.md"


def _places() -> dict[str, str]:
    """The pages that are made, by the paths of their sources in the repository."""
    made = {source: page for page, source in BESIDE_DOCS.items()}
    made["README.md"] = "index.md"
    for paths in rules().values():
        made |= {path.relative_to(ROOT).as_posix(): uri(path) for path in paths}
    return made


# --- what mkdocs asks ----------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Give every rule its place in the navigation."""
    for entry in config.nav:
        for listed in [each for title, each in entry.items() if title == "Rules"]:
            for family, paths in rules().items():
                pages = [{path.stem.replace("_", " "): uri(path)} for path in paths]
                listed.append({family.replace("_", " ").capitalize(): pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for page, source in BESIDE_DOCS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for paths in rules().values():
        for path in paths:
            files.append(File.generated(config, uri(path), content=rule_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to pages of the site, or to the repository where there is none."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # it is alone in its part
    if any(section.title == "Evidence" for section in page.ancestors):
        page.meta["search"] = {"boost": 0.5}  # long pages, which have a word of everything
    sources = {made: source for source, made in _places().items() if made != "index.md"}
    base = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def led(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(base, match[1]))
        made = _places().get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if files.get_file_from_path(made):
            return posixpath.relpath(made, posixpath.dirname(here) or ".")
        if path.startswith("..") or not (ROOT / path).exists():
            return match[1]  # mkdocs says that it leads nowhere
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{config.repo_url or ''}/{kind}/main/{path}"

    def linked(text: str) -> str:
        text = LINK.sub(led, text)
        return text if config.repo_url else NOWHERE.sub(r"\1", text)

    text = outside_of_code(markdown, linked)
    return PAIR.sub(_tabs, text)


# --- texts ---------------------------------------------------------------------------------------


def outside_of_code(text: str, change: Any) -> str:
    """``text`` with all changed that stands in no block of code."""
    done, parts = 0, []
    for block in FENCE.finditer(text):
        parts += [change(text[done : block.start()]), block[0]]
        done = block.end()
    return "".join([*parts, change(text[done:])])


def rule_page(path: Path) -> str:
    """The page of a rule: its reasons as they stand, its examples to be opened."""
    code = path.name[:7]
    text = path.read_text(encoding="utf-8").removeprefix("# ")
    said, _, rest = text.partition("\n## Examples\n")
    examples, _, keeps = rest.partition("\n## Keeps\n")
    parts = [f"# {code}: {said.strip()}"]
    if examples:
        parts += [
            "## Examples { data-search-exclude }",
            "What is written, as the tests hold it.",
            _folded(examples, 0),
        ]
    if keeps:
        parts += [
            "## What stays as it is { data-search-exclude }",
            "Byte for byte.",
            _folded(keeps, CLOSED_FROM),
        ]
    module = path.with_suffix(".py").relative_to(ROOT).as_posix()
    source = f"[{module}](../../{module})"
    parts += [
        f"The code of the rule: {source}. On the command line: `fsdp-migrate explain {code}`."
    ]
    return "\n\n".join(parts) + "\n"


def _folded(text: str, number: int) -> str:
    """A block that can be opened for each example; the first ``CLOSED_FROM`` are open."""
    folded = []
    for at, example in enumerate(re.split(r"(?m)^### ", text)[1:], number):
        title, _, body = example.partition("\n")
        mark = "???+" if at < CLOSED_FROM else "???"
        body = re.sub(r"(?m)^(Outcome|Support): (.*)$", _fact, body)
        body = PAIR.sub(_tabs, body)
        shown = title.replace('"', "&quot;")
        folded.append(
            f'{mark} example "{shown[:1].upper()}{shown[1:]}"\n\n{_indented(body.strip())}'
        )
    return "\n\n".join(folded)


def _fact(match: re.Match[str]) -> str:
    if match[1] == "Outcome":
        return f"Outcome: **{match[2]}**"
    return "Support functions: " + ", ".join(f"`{name}`" for name in match[2].split(", "))


def _tabs(match: re.Match[str]) -> str:
    name = match["name"] or ""
    tabs = [f'=== "{title}"\n\n{_indented(match[key])}' for title, key in _TABS]
    return (f"In {name.strip()}:\n\n" if name else "") + "\n\n".join(tabs)


_TABS = (("Before", "before"), ("After", "after"))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
