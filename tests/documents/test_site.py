"""The documentation site is built without a warning, and every link of it leads somewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.planning import pages
from tests.tools.documents import ROOT

OUTSIDE = re.compile(r"[a-z]+:|//")
installed = pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="the site needs the extra docs: pip install '.[docs]'",
)


class Read(HTMLParser):
    """The links and the anchors of a page, what it loads, and its text outside of code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.text: list[str] = []
        self._within: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])
        if tag in {"article", "p", "code"}:
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            self._within.remove(tag)

    def handle_data(self, data: str) -> None:
        if self._within == ["article", "p"]:
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as a tag publishes it, elsewhere."""
    return _built(
        tmp_path_factory.mktemp("site"), REPOSITORY_URL="https://code.example/fsdp-migrate"
    )


def _built(built: Path, **variables: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return built


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Read]:
    return {path: Read(path) for path in site.rglob("*.html")}


def written() -> set[str]:
    """The pages in docs/."""
    return {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}


def sources() -> dict[str, str]:
    """The pages that there must be, by where they are on the site, with a word that is on each."""
    found = {page.removesuffix(".md") + "/": "" for page in written()}
    found |= {f"rules/{page.code}/": page.code for page in pages.pages()}
    found |= {"contributing/": "", "changelog/": "", "security-policy/": ""}
    del found["index/"]
    return {"": "verdict", **found}


def test_the_navigation_names_every_page() -> None:
    """Without building it: what is not in the list cannot be found."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = set(re.findall(r"[\w/-]+\.md", text))
    assert written() <= named
    made = {"contributing.md", "changelog.md", "security-policy.md", "skill.md"}
    assert named - made <= written()


@installed
def test_every_page_and_every_rule_is_there_and_in_the_navigation(
    site: Path, read: dict[Path, Read]
) -> None:
    wanted = sources()
    assert len(wanted) > 90
    for where, word in wanted.items():
        assert word in (site / where / "index.html").read_text(encoding="utf-8")
    led: set[Path] = set()
    for path, page in read.items():
        for link in page.links:
            if not OUTSIDE.match(link):
                led.add((path.parent / unquote(urlsplit(link).path)).resolve())
    assert {(site / where).resolve() for where in wanted} <= led


@installed
def test_every_link_leads_to_a_page_and_a_place_in_it(read: dict[Path, Read]) -> None:
    wrong = []
    for path, page in read.items():
        for link in page.links:
            if OUTSIDE.match(link) or path.name == "404.html":
                continue
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            there = read.get(target)
            place = unquote(parts.fragment)
            if not (there or target.is_file()) or (there and place and place not in there.anchors):
                wrong.append((path.parent.name, link))
    assert not wrong


@installed
def test_links_into_the_repository_name_what_is_there(read: dict[Path, Read]) -> None:
    found = {
        match[1]
        for page in read.values()
        for link in page.links
        if (match := re.search(r"/(?:blob|tree)/main/([^#]+)", link))
    }
    assert found
    assert not {path for path in found if not (ROOT / path).exists()}


@installed
def test_nothing_leads_to_the_repository_before_it_has_an_address(tmp_path: Path) -> None:
    pages = [Read(path) for path in _built(tmp_path).rglob("*.html")]
    assert not [link for page in pages for link in page.links if "/main/" in link]


@installed
def test_nothing_is_loaded_from_elsewhere(read: dict[Path, Read]) -> None:
    assert not {each for page in read.values() for each in page.loads if OUTSIDE.match(each)}


@installed
def test_no_markdown_is_left_in_what_is_shown(read: dict[Path, Read]) -> None:
    """Python's Markdown wants more than code hosts do: an empty line before a list, say."""
    left = re.compile(r"```|\]\(|\*\*\w|^(?:- |\d+\. |## |\||=== |\?\?\? |!!! )", re.MULTILINE)
    wrong = {
        (path.parent.name, match[0])
        for path, page in read.items()
        if (match := left.search("".join(page.text)))
    }
    assert not wrong


@installed
def test_rules_are_found_by_their_code_and_not_by_their_examples(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = [entry["title"] for entry in index["docs"]]
    assert any(title.startswith("FSDP401") for title in titles)
    assert not any(entry["location"].endswith("#examples") for entry in index["docs"])


def test_a_tag_publishes_what_make_docs_builds() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "site.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    steps = workflow["jobs"]["publish"]["steps"]
    built = next(step for step in steps if "mkdocs" in step.get("run", ""))
    assert built["run"] in (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(bin)/", "")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"!ENV \[(\w+)", settings)) == set(built["env"])
    (uploaded,) = (step["with"]["path"] for step in steps if "upload" in step.get("uses", ""))
    assert f"site_dir: {uploaded}\n" in settings
    assert "secrets." not in json.dumps(workflow)
