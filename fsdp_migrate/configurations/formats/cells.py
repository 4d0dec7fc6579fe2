"""Notebooks: commands that their cells start, and files that their cells write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.discovery.configuration_files import is_configuration
from fsdp_migrate.syntax.notebook import Cell, Notebook, NotebookError

SUFFIX = ".ipynb"
LOOKS = re.compile(
    rb"\"[ \t]*(?:!|%%(?:bash|sh|script|writefile|file)\b|%(?:set_)?env\b)"
    rb"|\\n[ \t]*(?:!|%(?:set_)?env\b)"
)
"""How such a line begins, in the text of a notebook."""

_SHELL = re.compile(r"%%(?:bash|sh|script[ \t]+(?:ba)?sh)\b[^\n]*\n")
_FILE = re.compile(r"%%(?:writefile|file)[ \t]+([\w./-]+)[ \t]*\n")  # anew, under a name it says
_COMMAND = re.compile(r"(?m)^[ \t]*(?:!|%(?:set_)?env\b)")
_FILLED_IN = re.compile(r"\{[^{}\n]*\}")


@dataclass(frozen=True, eq=False)
class Part:
    """What of a cell is read: ``text``, below the line with the magic, as the file ``path``."""

    cell: Cell
    path: Path
    magic: str
    text: str

    @property
    def above(self) -> int:
        """How many lines of the cell stand above the text."""
        return self.magic.count("\n")


def parts(data: bytes, path: Path) -> tuple[Notebook | None, list[Part]]:
    """A notebook, and its cells that may set something."""
    try:
        notebook = Notebook.read(data, path)
    except NotebookError:
        return None, []  # said of its Python
    return notebook, list(_parts(notebook))


def _parts(notebook: Notebook) -> Iterator[Part]:
    for cell in notebook.cells:
        text = cell.code
        shell, file = _SHELL.match(text), _FILE.match(text)
        if shell is not None:
            path = notebook.path.with_suffix(".sh")
            yield Part(cell, path, shell[0], text[shell.end() :])
        elif file is not None:
            if not is_configuration(Path(file[1]).name):
                continue
            yield Part(cell, notebook.path.parent / file[1], file[0], text[file.end() :])
        elif not text.startswith("%%") and _COMMAND.search(text):
            yield Part(cell, notebook.path, "", text)


def shell_of(text: str) -> str:
    """The lines of a cell that begin with ``!``, and comments; all else blanked out.

    What IPython fills in reads as a variable of the shell, which is what it is to us.
    """
    kept = []
    continued = False
    for line in re.split(r"(?<=\n)", text):
        bare = line.lstrip(" \t")
        if continued or bare.startswith("#"):
            kept.append(line)
        elif bare.startswith("!"):
            kept.append(line.replace("!", " ", 1))
        else:
            kept.append(re.sub(r"[^\n]", " ", line))
        commands = continued or bare.startswith("!")
        continued = commands and line.rstrip("\n").endswith("\\")
    return _FILLED_IN.sub(lambda m: "$" + "_" * (len(m[0]) - 1), "".join(kept))
