"""Shell scripts, and what holds commands in the same way: statements of words with their places.

Dockerfiles, Makefiles and workflows are shell once what is not is blanked out, in as many
characters; files of variables (``.env``) are read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from fsdp_migrate.configurations.formats import cells, steps
from fsdp_migrate.configurations.formats.text import Span, Text

FROM_VARIABLE = "a variable fills it in"
_LINE_END = re.compile(r"(?<!\\)\r?\n")  # that no backslash joins to the next line
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s\\\"']*)(?=\s|$)")
SAFE = re.compile(r"[\w@%+:,./-]+")  # characters that need no quotes


class Kind(Enum):
    COMMAND = "command"
    VARIABLES = "variables"  # that programs started later see
    ARRAY = "array"


@dataclass(frozen=True)
class Word:
    start: int
    end: int
    value: str  # without its quotes
    quote: str = ""
    unknown: str = ""

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


@dataclass(eq=False)
class Statement:
    kind: Kind
    span: Span
    words: list[Word] = field(default_factory=list)
    name: str = ""  # of an array
    prefix: str = ""  # what an added statement of variables begins with
    exported: bool = True  # variables that programs see
    assigned: int = 0  # words at the beginning of a command that set variables

    def joined(self) -> str:
        return " ".join(word.value for word in self.words)


@dataclass(eq=False)
class Script:
    statements: list[Statement] = field(default_factory=list)
    comments: list[Span] = field(default_factory=list)


def read(text: Text, path: Path) -> Script:
    """The statements of a file."""
    name = path.name.lower()
    if name.startswith(".env") or name.endswith(".env"):
        return Script(list(_variables(text)))
    is_make = name.endswith((".mk", "makefile"))
    is_yaml = name.endswith((".yaml", ".yml"))
    is_image = re.match(r"(docker|container)file", name) or name.endswith(".dockerfile")
    shown = text.text
    if is_make:
        shown = _recipes(shown)
    elif is_image:
        shown = _instructions(shown)
    elif is_yaml:
        shown = steps.shell_of(shown)
    elif name.endswith(cells.SUFFIX):
        shown = cells.shell_of(shown)
    script = _Reader(shown).script()
    if is_image:
        script.statements += _instructions_env(text.text)
    return script


def has_comments(path: Path) -> bool:
    """Whether ``read`` tells the comments of a file of this name."""
    name = path.name.lower()
    return not name.startswith(".env") and not name.endswith((".env", ".mk", "makefile"))


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _recipes(text: str) -> str:
    """The recipes of a Makefile, without what make takes for itself."""
    lines = re.split(r"(?<=\n)", text)
    kept = []
    continued = False
    for line in lines:
        if not line.startswith("\t") and not continued:
            kept.append(_blank(line))
        elif continued:
            kept.append(line)
        else:
            kept.append(re.sub(r"^(\t[ \t]*)([@+-]*)", lambda m: m[1] + " " * len(m[2]), line))
        continued = kept[-1].rstrip("\r\n").endswith("\\")
    return "".join(kept)


def _instructions(text: str) -> str:
    """The commands of a Dockerfile."""
    kept = []
    continued = False
    for line in re.split(r"(?<=\n)", text):
        match = re.match(r"(?i)(\s*(?:RUN|CMD|ENTRYPOINT)\s)(?!\s*\[)", line)
        if continued or line.lstrip().startswith("#"):
            kept.append(line)
        elif match is not None:
            kept.append(_blank(match[0]) + line[match.end() :])
        else:
            kept.append(_blank(line))
        continued = line.rstrip("\r\n").endswith("\\") and bool(kept[-1].strip())
    return "".join(kept)


def _instructions_env(text: str) -> Iterator[Statement]:
    """``ENV A=1 B=2``, over however many lines."""
    for match in re.finditer(r"(?im)^[ \t]*ENV[ \t]+(?:[^\r\n\\]|\\\r?\n|\\.)*", text):
        words = []
        for each in re.finditer(
            r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s\\\"']*)(?=\s|$)", match[0]
        ):
            bare, quote, unknown = _bare(each[2])
            start = match.start() + each.start()
            end = match.start() + each.end()
            words.append(Word(start, end, f"{each[1]}={bare}", quote, unknown))
        if words:
            span = Span(match.start() + len(match[0]) - len(match[0].lstrip()), words[-1].end)
            yield Statement(Kind.VARIABLES, span, words, prefix="ENV ")


def _variables(text: Text) -> Iterator[Statement]:
    pattern = re.compile(r"(?m)^[ \t]*(export[ \t]+)?([A-Za-z_]\w*)=([^\r\n]*?)[ \t]*\r?$")
    for match in pattern.finditer(text.text):
        raw = re.sub(r"\s+#.*$", "", match[3]) if match[3][:1] not in "\"'" else match[3]
        end = match.start(3) + len(raw)
        quote = raw[:1] if raw[:1] in {'"', "'"} and raw[-1:] == raw[:1] and len(raw) > 1 else ""
        value = raw[1:-1] if quote else raw
        unknown = FROM_VARIABLE if "$" in value and quote != "'" else ""
        word = Word(match.start(2), end, f"{match[2]}={value}", quote, unknown)
        statement = Statement(Kind.VARIABLES, Span(match.start(1 if match[1] else 2), end), [word])
        statement.prefix = "export " if match[1] else ""
        yield statement


class _Reader:
    def __init__(self, text: str) -> None:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        self.text = text
        data = text.encode("utf-8", "surrogatepass")
        self.offset: Callable[[int], int] = _offsets(text, data)
        self.tree = Parser(Language(tree_sitter_bash.language())).parse(data)

    def script(self) -> Script:
        found = Script()
        waiting: list[Any] = [self.tree.root_node]
        while waiting:
            node = waiting.pop()
            if node.type == "comment":
                found.comments.append(self._span(node))
                continue
            if node.type == "command":
                found.statements += self._command(node)
            elif (statement := self._statement(node)) is not None:
                found.statements.append(statement)
            waiting += reversed(node.children)
        return found

    def _span(self, node: Any) -> Span:
        return Span(self.offset(node.start_byte), self.offset(node.end_byte))

    def _command(self, node: Any) -> Iterator[Statement]:
        """A command; the parser takes the one below ``A=1 B=2`` for the same, which it is not."""
        found = Statement(Kind.COMMAND, self._span(node))
        for child in node.children:
            if not child.is_named or child.type == "comment" or child.type.endswith("redirect"):
                continue
            word = self._word(child)
            if found.words and _LINE_END.search(self.text[found.words[-1].end : word.start]):
                words, start, end = found.words, found.span.start, found.words[-1].end
                if len(words) == found.assigned:
                    yield Statement(Kind.VARIABLES, Span(start, end), words, exported=False)
                    found = Statement(Kind.COMMAND, Span(word.start, found.span.end))
                else:
                    break  # what it is nobody knows
            found.assigned += child.type == "variable_assignment"
            found.words.append(word)
        yield found

    def _statement(self, node: Any) -> Statement | None:
        if node.type == "declaration_command":
            if node.children[0].type not in {"export", "declare", "typeset"}:
                return None
            options = [c for c in node.children if c.type == "word"]
            if node.children[0].type != "export" and not any(
                "x" in self._raw(each) for each in options
            ):
                return None
            found = Statement(Kind.VARIABLES, self._span(node), prefix="export ")
            found.words = [self._word(c) for c in node.children if c.type == "variable_assignment"]
            return found
        if node.type == "variable_assignments" or (
            node.type == "variable_assignment" and node.parent.type == "program"
        ):
            array = next((c for c in node.children if c.type == "array"), None)
            if array is not None:
                found = Statement(Kind.ARRAY, self._span(node), name=self._raw(node.children[0]))
                found.words = [
                    self._word(c) for c in array.children if c.is_named and c.type != "comment"
                ]
                return found
            found = Statement(Kind.VARIABLES, self._span(node), exported=False)
            parts = node.children if node.type == "variable_assignments" else [node]
            found.words = [self._word(c) for c in parts if c.type == "variable_assignment"]
            return found
        return None

    def _raw(self, node: Any) -> str:
        return self.text[slice(*self._span(node))]

    def _word(self, node: Any) -> Word:
        start, end = self._span(node)
        raw = self.text[start:end]
        if raw.endswith("\r"):
            raw, end = raw[:-1], end - 1
        if node.type == "variable_assignment":
            name, _, value = raw.partition("=")
            bare, quote, unknown = _bare(value)
            return Word(start, end, f"{name}={bare}", quote, unknown)
        bare, quote, unknown = _bare(raw)
        return Word(start, end, bare, quote, unknown)


def _bare(raw: str) -> tuple[str, str, str]:
    """A word without quotes, the quotes, and why it is not known."""
    unknown = ""
    quote = raw[0] if len(raw) > 1 and raw[0] in "\"'" and raw[-1] == raw[0] else ""
    inner = raw[1:-1] if quote else raw
    if quote != "'" and re.search(r"[$`]", inner):
        unknown = FROM_VARIABLE
    elif not quote:
        match = re.fullmatch(r"([\w.+-]*=)(?:'([^']*)'|\"([^'\"\\]*)\")", inner)
        if match is not None:  # --fsdp="full_shard"
            return f"{match[1]}{match[2] or match[3] or ''}", "", ""
        if re.search(r"['\"\\*?\[{~]", inner):
            unknown = "its quotes or patterns are the shell's to read"
    elif quote == '"' and "\\" in inner:
        unknown = "its quotes or patterns are the shell's to read"
    return inner, quote, unknown


def _offsets(text: str, data: bytes) -> Callable[[int], int]:
    if len(text) == len(data):
        return lambda at: at
    where = []
    for index, character in enumerate(text):
        where += [index] * len(character.encode("utf-8", "surrogatepass"))
    where.append(len(text))
    return lambda at: where[at]


def written(value: str, quote: str = "") -> str:
    """A value as a word of the shell."""
    if quote and quote not in value and not (quote == '"' and re.search(r"[$`\\]", value)):
        return f"{quote}{value}{quote}"
    if SAFE.fullmatch(value):
        return value
    return "'" + value.replace("'", "'\\''") + "'"
