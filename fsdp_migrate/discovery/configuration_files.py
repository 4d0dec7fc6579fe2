"""Which files may hold settings of FSDP for a framework: by their names, then by one word.

YAML, JSON, shell scripts and their like. A tree has many of those for other purposes, so that
they are only read, at most some size, and asked for the word.
"""

from __future__ import annotations

import os
import re

TEMPLATES = (".j2", ".jinja", ".jinja2", ".tmpl", ".tpl")
SUFFIXES = (
    *(".yaml", ".yml", ".json"),
    *(".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".pbs", ".lsf", ".env", ".dockerfile", ".mk"),
    *(".job", ".qsub", ".submit"),
    *TEMPLATES,
)
NAMES = re.compile(r"(?i)\.env(\..+)?|(docker|container)file([.-].+)?|(gnu)?makefile")
LARGEST = 1_000_000  # bytes; what is larger is data
WORD = b"fsdp"
OF_MINDSPEED = b"sub_modules_to_wrap"  # in a file that need not have the word
SHELL = re.compile(rb"#![^\r\n]*\b(?:ba|da|k|z)?sh\b")  # how a script without a suffix begins


def is_configuration(name: str) -> bool:
    """Whether a file of this name may be a configuration; most names are out at once.

    One without a suffix may be a script, for SLURM as well as for a shell: its beginning tells.
    """
    if name.endswith(SUFFIXES) or "." not in name:
        return True
    return name[:1] in ".dDcCgGmM" and NAMES.fullmatch(name) is not None


def contents(path: str) -> bytes | None:
    """The contents of a file that has the word, None of another.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size > LARGEST:
            return None
        name = os.path.basename(path)
        data = b""
        if "." not in name and NAMES.fullmatch(name) is None:
            data = stream.read(80)
            if SHELL.match(data) is None:
                return None
        data += stream.read()
    named = WORD in os.fsencode(name).lower()
    return data if named or WORD in data.lower() or OF_MINDSPEED in data else None
