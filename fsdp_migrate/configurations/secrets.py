"""What of configurations is in no report: the values of variables that are not FSDP's."""

from __future__ import annotations

import re
from pathlib import Path

HIDDEN = "***"
_ASSIGNED = re.compile(
    r"(?m)^([ \t#]*(?:export[ \t]+|ENV[ \t]+|-[ ]+)?[\w.-]+[ \t]*[=:][ \t]*)(\S.*)$"
)
_SECRET = re.compile(r"(?i)key\b|_key|token|secret|passw|credential")
_BESIDE = re.compile(r"(?i)(\b\w*(?:key|token|secret|passw|credential)\w*=)([^\s#]+)")
_OURS = re.compile(r"(?i)fsdp|accelerate_|parallelism_")


def masked_line(line: str) -> str:
    """A line without the values of variables that are secret by their names; as long as before."""
    return _BESIDE.sub(lambda m: m[1] + "*" * len(m[2]), line)


def masked(text: str, path: Path) -> str:
    """A file's text without secrets: of variables in ``.env`` all, elsewhere by their names."""
    name = path.name.lower()
    everything = name.startswith(".env") or name.endswith(".env")

    def hide(match: re.Match[str]) -> str:
        if _OURS.search(match[1]) or not (everything or _SECRET.search(match[1])):
            return match[0]
        return f"{match[1]}{HIDDEN}"

    return masked_line(_ASSIGNED.sub(hide, text))
