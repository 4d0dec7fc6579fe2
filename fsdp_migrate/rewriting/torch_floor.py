"""Raise the lower bound of a requirement of torch, and nothing else of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import InvalidVersion, Version

_CLAUSE = re.compile(r"(===|==|~=|!=|<=|>=|<|>)(\s*)([^\s,;)]+)")
_NAME = re.compile(r"\s*torch(?:\s*\[[^\]]*\])?", re.IGNORECASE)
_CARET = re.compile(r"\^(\s*)(\d+(?:\.\d+)*)")
_EXACT = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Refused:
    """Why a requirement stays although the target is not allowed, or not all before it excluded."""

    reason: str


def raised(text: str, target: Version, *, poetry: bool = False) -> str | Refused:
    """The requirement with ``target`` as its lower bound; as it is if that is high enough.

    ``poetry``: it is a constraint as Poetry writes it, without the name.
    """
    if poetry:
        return _raised_constraint(text, target)
    try:
        requirement = Requirement(text)
    except ValueError:
        return Refused("it is no requirement that could be read")
    if requirement.url:
        named = _release_of_wheel(requirement.url)
        if named is None:
            return Refused("it names an address, whose release is not known")
        before = _release(named) < _release(target)
        return Refused(f"it is pinned before torch {target}") if before else text
    name = _NAME.match(text)
    end = text.find(";") if ";" in text else len(text)
    assert name is not None
    clauses = _raised_clauses(text[name.end() : end], target)
    return clauses if isinstance(clauses, Refused) else text[: name.end()] + clauses + text[end:]


def _release_of_wheel(address: str) -> Version | None:
    """The release that the name of a wheel says: ``.../torch-2.7.1%2Bcu128-cp312-...whl``."""
    name = unquote(urlsplit(address).path).rpartition("/")[2]
    try:
        distribution, version, *_ = parse_wheel_filename(name)
    except ValueError:
        return None
    return version if distribution == "torch" else None


def _raised_constraint(text: str, target: Version) -> str | Refused:
    caret = _CARET.fullmatch(text.strip())
    if caret is not None:
        least = Version(caret[2])
        if _release(least) >= _release(target):
            return text
        if least.major != target.major or not least.major:
            return Refused(f"it excludes torch {target}")
        return text.replace(caret[2], _like(target, caret[2]), 1)
    if text.strip() == "*":
        return f">={target}"
    if _EXACT.fullmatch(text.strip()):
        clauses = _raised_clauses(f"=={text.strip()}", target)
        return clauses if isinstance(clauses, Refused) else text
    if re.fullmatch(rf"\s*{_CLAUSE.pattern}(\s*,\s*{_CLAUSE.pattern})*\s*", text):
        return _raised_clauses(text, target)
    return Refused("a constraint of this form is not edited")


def _raised_clauses(text: str, target: Version) -> str | Refused:
    """``>=2.0,<3`` -> ``>=2.7,<3``."""
    lower: list[tuple[Version, re.Match[str]]] = []
    for clause in _CLAUSE.finditer(text):
        sign, _, spelled = clause.groups()
        try:
            version = Version(spelled.removesuffix(".*"))
        except InvalidVersion:
            return Refused("its version is none that could be read")
        before = _release(version) < _release(target)
        pinned = sign in {"==", "==="} or (sign == "~=" and spelled.count(".") > 1)
        if pinned:
            return Refused(f"it is pinned before torch {target}") if before else text
        if sign in {"<", "<="} and not _allows(f"{sign}{spelled}", target):
            return Refused(f"it excludes torch {target}")
        if sign in {">=", ">", "~="}:
            if sign == "~=" and version.major != target.major:
                return Refused(f"it excludes torch {target}") if before else text
            if not before:
                return text
            lower.append((version, clause))
    if lower:
        _, clause = max(lower, key=lambda each: each[0])
        sign, space, spelled = clause.groups()
        new = f"{'~=' if sign == '~=' else '>='}{space}{_like(target, spelled)}"
        text = text[: clause.start()] + new + text[clause.end() :]
    elif first := _CLAUSE.search(text):
        text = f"{text[: first.start()]}>={target},{text[first.start() :]}"
    else:
        text = f">={target}{text}"
    wanted = "".join(text.split()).strip("()")
    return text if _allows(wanted, target) else Refused(f"it excludes torch {target}")


def _allows(clauses: str, target: Version) -> bool:
    """Whether some release of the target's series is allowed."""
    allowed = SpecifierSet(clauses)
    return any(allowed.contains(f"{target}.{patch}") for patch in range(10))


def _release(version: Version) -> tuple[int, int]:
    return version.major, version.minor


def _like(target: Version, spelled: str) -> str:
    """The target with as many numbers as the version that was written."""
    return f"{target}.0" if spelled.count(".") == 2 else str(target)
