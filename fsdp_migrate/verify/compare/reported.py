"""Numbers that a program reports: what reaches the screen, a log, lines of JSON.

A line is known by its text without its numbers, and by how often that text came before. What counts
as a result of training is found out and not guessed: a number that the noise twin moves beyond
noise, or that the migrated program does not repeat, depends on the clock or on chance; and one that
stays the same when the weights are shaken is no result (the size of a shard, the number of a line),
unless it counts how far training has come (samples, tokens).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fsdp_migrate.verify.compare.envelope import FACTOR, gap

CEILING = 0.02
"""Relative difference between original and twin beyond which a number is not reproducible."""

_FLOOR = 1e-5
_SAME = 1e-6

# Dates, times of day, places in files: numbers of no result, whose texts differ.
_PLACES = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d\S*)?|\d+:\d\d(?::\d\d)?(?:[.,]\d+)?"
    r"|[\w./-]+\.\w+:\d+|0x[0-9a-f]+"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf)(?![\w.])")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
# Not the name of the number that comes next.
_UNIT = re.compile(r"\s*([A-Za-z]+(?: ?/ ?[A-Za-z]+)?)\b(?![\w]*[\s\"':=]+[-+]?[\d.])")
_BAR = re.compile(r".*?\d+/\d+ \[[^\]]*\]")
_WORD = re.compile(r"[A-Za-z]+")
# What a line says of a number that is no result: times, memory, speed, sizes.
_TIMES = "time took elapsed eta sec secs second seconds s ms us ns min mins minutes hour hours h"
_MEMORY = "mem memory alloc allocated reserved peak rss kb mb gb kib mib gib bytes"
_SPEED = "throughput speed tps flops tflops mfu util utilization per"
_SIZES = "numel param params parameters pid port size sizes shape shapes"
_ASIDE = frozenset(" ".join([_TIMES, _MEMORY, _SPEED, _SIZES]).split())

_DATA = "sample samples token tokens example examples image images sequence sequences"
_COUNTED = frozenset(_DATA.split())
"""What a number counts that tells how far training has come, whatever the weights are."""

MIXED = "output"
"""The stream of a program that makes its own ranks: their lines come in any order, so that whole
numbers (the rank, the step) belong to the text by which a line is known."""

Streams = Mapping[str, str]
"""Where something was reported (``rank 0 stdout``, ``log.jsonl``) -> its text."""

Place = tuple[str, str, int]
"""Stream, text of a line without its numbers, and which number of it."""


@dataclass(frozen=True)
class Apart:
    """A number that the two sides report differently. ``count`` says which of the lines alike."""

    place: Place
    count: int
    before: str
    after: str
    allowed: float

    def __str__(self) -> str:
        stream, text, which = self.place
        parts = text.split("#")
        name = " ".join("#".join(parts[: which + 1]).split()[-3:]) or f"number {which + 1}"
        return f"{stream}, {name} {self.before} before, {self.after} after (line {self.count + 1})"


@dataclass(frozen=True)
class Comparison:
    """What was compared: how many numbers, which differ, and how many are not reproducible."""

    compared: int
    apart: tuple[Apart, ...]
    chance: int
    largest: float = 0.0


def compare(before: Streams, after: Streams, twin: Streams) -> Comparison:
    """The numbers that ``before`` and its ``twin`` report alike, beside those of ``after``."""
    mine, theirs, noisy = (read(streams) for streams in (before, after, twin))
    compared, chance, largest = 0, 0, 0.0
    apart: list[Apart] = []
    for place, values in mine.items():
        other, shaken = theirs.get(place), noisy.get(place)
        if other is None:
            continue
        if shaken is None or not len(values) == len(shaken) == len(other):
            chance += 1
            continue
        noise = max(_gap(a, b) for a, b in zip(values, shaken, strict=True))
        if noise > CEILING:
            chance += 1
            continue
        allowed = max(_FLOOR, FACTOR * noise)
        for count, (a, b) in enumerate(zip(values, other, strict=True)):
            compared += 1
            distance = _gap(a, b)
            largest = max(largest, distance if distance <= allowed else 0.0)
            if distance > allowed:
                apart.append(Apart(place, count, a, b, allowed))
    return Comparison(compared, tuple(apart), chance, largest)


def results(apart: tuple[Apart, ...], shaken: Streams, again: Streams) -> tuple[Apart, ...]:
    """Those that are results of training, or count how far it has come: the former move when the
    weights are ``shaken``. The migrated program reports the same when it runs ``again``, which no
    clock does."""
    moved, repeated = read(shaken), read(again)
    kept = []
    for each in apart:
        here, there = moved.get(each.place, ()), repeated.get(each.place, ())
        if each.count >= len(here) or each.count >= len(there):
            continue
        moves = _gap(each.before, here[each.count]) > each.allowed
        if (moves or _counts(each.place)) and _gap(each.after, there[each.count]) <= _SAME:
            kept.append(each)
    return tuple(kept)


def _counts(place: Place) -> bool:
    """Whether the text beside a number says that it counts what was trained with."""
    _, text, which = place
    parts = text.split("#")
    unit = _UNIT.match("0".join(parts[which + 1 :]))
    return bool(_COUNTED & (_words(_last_name(parts[which])) | _words(unit[1] if unit else "")))


def read(streams: Streams) -> dict[Place, tuple[str, ...]]:
    """The numbers of all lines, as they were written, in order."""
    found: dict[Place, list[str]] = {}
    for stream, text in streams.items():
        for line in _lines(text):
            name, numbers = _taken_apart(line, mixed=stream == MIXED)
            for which, (number, aside) in enumerate(numbers):
                if not aside:
                    found.setdefault((stream, name, which), []).append(number)
    return {place: tuple(values) for place, values in found.items()}


def _lines(text: str) -> Iterator[str]:
    """All lines without progress bars: what those show depends on when they are drawn."""
    for line in text.split("\n"):
        yield _BAR.sub("", line.rstrip("\r").rpartition("\r")[2])


def _taken_apart(line: str, *, mixed: bool) -> tuple[str, list[tuple[str, bool]]]:
    """The text of a line with ``#`` for each number, and the numbers, each with whether the line
    says that it is no result."""
    line = _PLACES.sub("~", line)
    numbers: list[tuple[str, bool]] = []
    parts: list[str] = []
    end = 0
    for match in _NUMBER.finditer(line):
        if mixed and match[0].isdigit():
            continue
        between = line[end : match.start()]
        parts.append(between if mixed else _DIGITS.sub("~", between))
        unit = _UNIT.match(line[match.end() :])
        # The name in front of it, up to the number before: "step_time", "peak memory".
        named = _words(_last_name(between)) | _words(unit[1] if unit else "")
        numbers.append((match[0], bool(named & _ASIDE)))
        end = match.end()
    parts.append(line[end:] if mixed else _DIGITS.sub("~", line[end:]))
    return "#".join(parts), numbers


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _last_name(text: str) -> str:
    """What names a number, of the text in front of it."""
    pieces = [piece for piece in re.split(r"[|,;{}()\[\]]", text) if _WORD.search(piece)]
    return pieces[-1] if pieces else ""


def _gap(a: str, b: str) -> float:
    """Relative difference of two numbers, zero where printing may have rounded it in."""
    x, y = float(a), float(b)
    if math.isfinite(x) and math.isfinite(y) and abs(x - y) <= 1.01 * max(_unit(a), _unit(b)):
        return 0.0
    return gap(x, y)


def _unit(text: str) -> float:
    """The value of the last digit of a number that is not whole; whole ones are exact."""
    digits, _, exponent = text.lower().partition("e")
    if "." not in digits and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])))
