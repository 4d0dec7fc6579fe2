"""Torch's version as expressions have it, and what operations make of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version


@dataclass(frozen=True)
class Answer:
    """What a test of torch's version says from release ``until`` on, which is below the target.

    ``text`` names the releases for which it says the opposite: ``before 2.1``.
    """

    holds: bool
    until: Version
    text: str


@dataclass(frozen=True)
class Torch:
    """The version of torch as an expression has it.

    ``form``: ``text`` is ``torch.__version__``, which compares by number, ``plain`` a string that
    does not, ``version`` a parsed one; ``split`` is text cut at its ``+``; ``words`` are the
    release's numbers as strings, ``numbers`` as integers, ``word`` and ``number`` one of them.
    Of the numbers it has ``count``, those from ``first`` on.
    """

    form: str
    first: int = 0
    count: int = 0


@dataclass(frozen=True)
class Given:
    """What is written in the source: a text, a number, a tuple.

    ``parsed``: a version made of it.
    """

    value: object
    parsed: bool = False


Reading = Answer | Torch | Given | None
SIGNS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
HOLD = frozenset({">", ">=", "!=", "not in"})  # for what is later than anything it is compare with
WORDING = {"<": "before ", ">=": "before ", "<=": "up to ", ">": "up to "}
REQUIREMENT = re.compile(r"torch\s*(<=|>=|==|!=|<|>)\s*([\w.+]+)")
PREFIX = re.compile(r"(\d+\.)+")
DISTRIBUTION = Torch("distribution")


def compare(torch: Torch, sign: str, given: Given, target: Version) -> Answer | None:
    """What a comparison says of every release from ``target`` on; None where they may differ."""
    if sign in {"in", "not in"}:
        values = given.value if isinstance(given.value, tuple) else ()
        each = [compare(torch, "==", Given(v, given.parsed), target) for v in values]
        if not each or None in each:
            return None
        last = max((a for a in each if a is not None), key=lambda a: a.until)
        return replace(last, holds=sign == "not in", text=f"up to {last.until}")
    if sign not in MIRRORED:
        return None
    bound = _below(torch, sign, given, target)
    if bound is None:
        return None
    return Answer(sign in HOLD, bound, f"{WORDING.get(sign, '')}{bound}")


def _below(torch: Torch, sign: str, given: Given, target: Version) -> Version | None:
    """What torch's version is compare with, when every release from ``target`` on is later."""
    value = given.value
    exact = sign in {"==", "!="}
    if torch.form in {"numbers", "number", "words", "word"}:
        listed = (value,) if torch.form in {"number", "word"} else value
        if torch.first or not isinstance(listed, tuple) or not listed or given.parsed:
            return None
        if torch.form in {"words", "word"}:
            if not all(isinstance(v, str) and v.isdigit() for v in listed):
                return None
            # As texts "10" is less than "2", but nothing from there on less than "1".
            if not exact and listed[0] not in {"0", "1"}:
                return None
            listed = tuple(map(int, listed))
        if not all(type(v) is int for v in listed):
            return None
        first = (*target.release, 0, 0)[: torch.count]
        enough = listed <= first if sign in {"<", ">="} else listed < first
        return Version(".".join(map(str, listed))) if enough else None
    if torch.form != "plain" and isinstance(value, tuple) and all(type(v) is int for v in value):
        value = ".".join(map(str, value))  # as torch does with what its version is compare with
    if not isinstance(value, str) or torch.form not in {"text", "plain", "version"}:
        return None
    if torch.form == "plain" and (given.parsed or (not exact and value[:2] not in {"0.", "1."})):
        return None
    version = _version(value)
    if version is None or version.epoch or not _is_earlier(version.release, target):
        return None
    return version


def _is_earlier(numbers: Sequence[int], target: Version) -> bool:
    """Whether a release comes before the target, by more than what stands behind its numbers."""
    length = max(len(numbers), len(target.release))
    theirs, ours = (
        [*release, *[0] * (length - len(release))] for release in (numbers, target.release)
    )
    return theirs < ours


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except ValueError:  # not a version, or one with too long a number
        return None


def answer_to(sign: Reading, bound: Reading, target: Version) -> Answer | None:
    """What a comparison says whose operator and other side are written out."""
    if isinstance(sign, Given) and isinstance(bound, Given) and isinstance(sign.value, str):
        return compare(Torch("version"), sign.value, bound, target)
    return None


def parse_version(read: Reading) -> Reading:
    match read:
        case Torch(form="text" | "plain" | "version"):
            return Torch("version")
        case Given(value=str(value)) if _version(value) is not None:
            return Given(value, parsed=True)
    return None


def call_method(owner: Torch, name: str, given: Sequence[Reading], target: Version) -> Reading:
    first = given[0] if len(given) == 1 else None
    sign = first.value if isinstance(first, Given) else None
    if owner.form not in {"text", "plain"}:
        return None
    match name, sign:
        case (("split" | "partition"), "+"):
            return Torch("split")
        case "split", ".":
            return Torch("words", 0, 3)
        case "strip", _ if not given:
            return Torch("plain")
        case "startswith", str(prefix) if PREFIX.fullmatch(prefix):
            numbers = [int(n) for n in prefix.split(".")[:-1]]
            if numbers < list(target.release[: len(numbers)]):
                bound = Version(".".join(map(str, numbers)))
                return Answer(False, bound, f"{bound}")
    return None


def call_builtin(name: str, given: Reading) -> Reading:
    match name, given:
        case "str", Torch(form="text" | "plain" | "version"):
            return Torch("plain")
        case (("tuple" | "list"), Torch(form="words" | "numbers")):
            return given
        case "int", Torch(form="word" | "number") as one:
            return replace(one, form="number")
        case "bool", Answer():
            return given
    return None


def map_over(whole: Reading, function: str) -> Reading:
    if not isinstance(whole, Torch) or whole.form not in {"words", "numbers"}:
        return None
    return replace(whole, form="numbers" if function == "int" else "words")


def item_of(whole: Reading, index: ast.expr) -> Reading:
    if not isinstance(whole, Torch):
        return None
    match index:
        case ast.Constant(value=0) if whole.form == "split":
            return Torch("plain")
        case ast.Constant(value=int(number)) if whole.form in {"words", "numbers"}:
            if 0 <= number < whole.count:
                return Torch(whole.form[:-1], whole.first + number, 1)
        case ast.Slice(lower=None, upper=ast.Constant(value=int(number)), step=None) if (
            whole.form in {"words", "numbers"} and number > 0
        ):
            return replace(whole, count=min(number, whole.count))
    return None


def agreed(read: Iterable[Reading]) -> Reading:
    """What all possible readings of an expression agree on; None where they do not."""
    found = list(read)
    answers = [r for r in found if isinstance(r, Answer)]
    if answers and len(answers) == len(found):
        alike = len({a.holds for a in answers}) == 1
        return max(answers, key=lambda a: a.until) if alike else None
    if not found:
        return None
    return found[0] if all(r == found[0] for r in found) else None


def join_answers(answers: Sequence[Reading], *, every: bool) -> Reading:
    """What ``and`` (with ``every``) or ``or`` of conditions says, as far as that is certain."""
    known = [a for a in answers if isinstance(a, Answer)]
    deciding = [a for a in known if a.holds is not every]
    if deciding:
        return min(deciding, key=lambda a: a.until)
    if known and len(known) == len(answers):
        return max(known, key=lambda a: a.until)
    return None
