"""What a distribution says of itself beyond pyproject.toml: addresses, and a README that reads well
outside of the repository.

``HOME`` of the package is where the sources are public. Without one there are no project URLs, and
links to files become their names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")


def constant(name: str, root: Path) -> str:
    """A string that the package sets, read without an import."""
    text = (root / "fsdp_migrate" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(rf'(?m)^{name} = "(.*)"', text)
    assert found is not None, name
    return found[1]


def urls(home: str, version: str) -> dict[str, str]:
    if not home:
        return {}
    files = f"{home}/blob/v{version}"
    return {
        "Source": home,
        "Documentation": f"{files}/README.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def readme(text: str, home: str, version: str) -> str:
    """``text`` with links that lead somewhere wherever it is read, or none."""

    def absolute(link: re.Match[str]) -> str:
        words, target = link.groups()
        if home:
            return f"[{words}]({home}/blob/v{version}/{target})"
        return words if words == target else f"{words} ({target})"

    return RELATIVE.sub(absolute, text)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        home, version = constant("HOME", root), constant("__version__", root)
        if home:
            metadata["urls"] = urls(home, version)
        text = (root / "README.md").read_text(encoding="utf-8")
        told = readme(text, home, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": told}
