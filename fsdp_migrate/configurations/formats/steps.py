"""Shell in YAML: the steps of workflows (``run: |``), and of other descriptions of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fsdp_migrate.configurations.formats import yaml
from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.formats.tree import Mapping, Node, Scalar, mappings
from fsdp_migrate.configurations.formats.tree import Sequence as ListNode

KEYS = frozenset({"run", "setup", "script", "before_script", "after_script"})
SHELLS = ("sh", "bash")
EXPRESSION = re.compile(r"\$\{\{[^\r\n]*?\}\}")


def has_steps(documents: Sequence[Node]) -> bool:
    return any(KEYS & {p.key for p in m.pairs} for d in documents for _, m in mappings(d))


def shell_of(text: str) -> str:
    """The text with all blanked out that is neither shell nor a comment, in as many characters.

    What a workflow fills in reads as a variable, which is what it is to us.
    """
    kept = list(re.sub(r"(?m)^(?![ \t]*#)[^\r\n]+", lambda m: " " * len(m[0]), text))
    try:
        documents = yaml.read(text)
    except yaml.NotYaml:
        documents = []
    for start, end in _scripts(text, documents):
        kept[start:end] = text[start:end]
    shell = "".join(kept).replace("\\\r\n", " \\\n").replace("\r\n", " \n")  # as YAML reads them
    return EXPRESSION.sub(lambda m: "$" + "_" * (len(m[0]) - 1), shell)


def _scripts(text: str, documents: Sequence[Node]) -> Iterator[Span]:
    for document in documents:
        for _, mapping in mappings(document):
            for pair in mapping.pairs:
                if pair.key in KEYS and _is_shell(mapping):
                    value = pair.value
                    for node in value.items if isinstance(value, ListNode) else [value]:
                        yield from _script(text, node)


def _is_shell(mapping: Mapping) -> bool:
    """Whether a step runs in a shell that is ours to read: it may name another."""
    named = mapping.get("shell")
    if named is None or not isinstance(named.value, Scalar):
        return True
    return str(named.value.value).split(" ")[0] in SHELLS


def _script(text: str, node: Node) -> Iterator[Span]:
    """Where the shell of a value stands: a literal block, or one line without quotes."""
    if not isinstance(node, Scalar) or node.end <= node.start:
        return
    if node.quote == "|":
        first = text.find("\n", node.start, node.end)
        if first >= 0:
            yield Span(first + 1, node.end)
    elif not node.quote and "\n" not in text[node.start : node.end]:
        yield Span(node.start, node.end)
