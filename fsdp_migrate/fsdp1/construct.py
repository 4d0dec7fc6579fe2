"""What stands there of FSDP1: the constructor, one of its arguments, a type, an import.

Rules spell the constructs that they handle; here alone a spelled one is taken apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fsdp_migrate.fsdp1 import api
from fsdp_migrate.fsdp1.api import FSDP


class ConstructKind(Enum):
    """How constructs of a kind are spelled."""

    ANNOTATION = "annotation({})"
    ATTRIBUTE_BY_NAME = "attribute by name({})"
    BYTES = "bytes({})"
    CLASS = "class({})"
    COMPARED = "compared({})"
    HASATTR = "hasattr({})"
    IMPORT = "import({})"
    ISINSTANCE = "isinstance({})"
    LISTED = "listed({})"
    MATCHED = "case({})"
    NAME_IN_STRING = "name({})"
    PARTIAL = "partial({})"
    REPLACED = "replaced({})"
    STRING = "string({})"
    TESTED = "tested({})"
    UNBOUND = "unbound({})"
    VALUE = "value({})"
    VERSION = "version({})"
    PRIVATE = api.PRIVATE + "{}"
    CONSTRUCTOR = "{}()"
    ARGUMENT = "{}({}=)"
    MEMBER = "{}.{}"
    NAME = "{}"  # another name of FSDP1's, or what a rule calls what its finder finds


def _pattern(kind: ConstructKind) -> re.Pattern[str]:
    of_words = kind in {ConstructKind.CONSTRUCTOR, ConstructKind.ARGUMENT, ConstructKind.MEMBER}
    return re.compile(re.escape(kind.value).replace(r"\{\}", r"(\w+)" if of_words else "(.+)"))


_PATTERNS = {kind: _pattern(kind) for kind in ConstructKind}


@dataclass(frozen=True)
class Construct:
    """``FullyShardedDataParallel(device_id=)`` is of the kind ARGUMENT, with the name of the class
    and ``device_id`` as its part; ``import(StateDictType)`` is an IMPORT of that name."""

    kind: ConstructKind
    name: str
    part: str = ""  # the argument or the member

    @classmethod
    def parse(cls, spelled: str) -> Construct:
        """The construct that a rule spells; what is spelled like no other kind is a NAME."""
        for kind, pattern in _PATTERNS.items():
            match = pattern.fullmatch(spelled)
            if match is not None:
                return cls(kind, *match.groups())
        raise ValueError("a construct has a name")

    @classmethod
    def of_argument(cls, name: str) -> Construct:
        """An argument of FSDP1's constructor."""
        return cls(ConstructKind.ARGUMENT, FSDP, name)

    @classmethod
    def of_model(cls, name: str) -> Construct:
        """An attribute of FSDP1's models, or of their class."""
        return cls(ConstructKind.MEMBER, FSDP, name)

    def __str__(self) -> str:
        return self.kind.value.format(self.name, self.part)

    def wider(self) -> Iterator[Construct]:
        """The constructs whose rule answers for this one, the best first: itself, what it is a
        member of (``ShardingStrategy``), or its kind (``import``)."""
        yield self
        spelled = str(self)
        if spelled.endswith(")"):
            yield Construct.parse(spelled.partition("(")[0])
            return
        while "." in spelled:
            spelled = spelled.rpartition(".")[0]
            yield Construct.parse(spelled)

    @property
    def owner(self) -> str:
        """The name of FSDP1's that it is about, without members (``StateDictType``); nothing for a
        constructor and its arguments."""
        written_out = self.kind in {ConstructKind.CONSTRUCTOR, ConstructKind.ARGUMENT}
        return "" if written_out else self.name.partition(".")[0]

    @property
    def last(self) -> str:
        """The last of its names: ``no_sync``, or ``_reshard`` of a private function."""
        return self.part or self.name.rpartition(".")[2]

    @property
    def attribute(self) -> str:
        """What of an FSDP1 model it is, such as ``no_sync``; or nothing."""
        return self.part if self.kind is ConstructKind.MEMBER and self.name == FSDP else ""

    @property
    def is_constructor(self) -> bool:
        """Whether it is FSDP1's constructor, or an argument of it."""
        return self.name == FSDP and self.kind in {
            ConstructKind.CONSTRUCTOR,
            ConstructKind.ARGUMENT,
        }

    @property
    def is_private(self) -> bool:
        return self.kind is ConstructKind.PRIVATE or self.name.startswith(api.PRIVATE)

    @property
    def shown(self) -> str:
        """As people write it: ``FSDP.no_sync``, ``device_id``."""
        if self.kind is ConstructKind.ARGUMENT and self.name in {FSDP, "MixedPrecision"}:
            return self.part
        return str(self).replace(FSDP, "FSDP")

    @property
    def topic(self) -> str:
        """The bare name by which ``explain`` finds its rule: ``device_id``, ``CPUOffload``."""
        if self.kind is ConstructKind.ARGUMENT or self.attribute:
            return self.part
        whole = self.kind in {ConstructKind.NAME, ConstructKind.MEMBER, ConstructKind.PRIVATE}
        return str(self).rstrip("()") if whole else self.name


ANY = Construct.parse("*")  # what the rule for all the rest handles
