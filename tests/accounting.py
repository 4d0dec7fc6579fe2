"""An independent count of FSDP1 references, to hold the tool's own against.

Deliberately naive: names imported from ``torch.distributed.fsdp`` and what is written with them,
found with nothing but ``ast``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsdp_migrate.study import Decision

PACKAGE = "torch.distributed.fsdp"
NAMES = frozenset(
    (
        *("FullyShardedDataParallel", "ShardingStrategy", "MixedPrecision", "BackwardPrefetch"),
        *("CPUOffload", "StateDictType", "StateDictConfig", "FullStateDictConfig"),
        *("LocalStateDictConfig", "ShardedStateDictConfig", "StateDictSettings"),
        *("OptimStateDictConfig", "FullOptimStateDictConfig", "LocalOptimStateDictConfig"),
        *("ShardedOptimStateDictConfig", "OptimStateKeyType", "FlatParameter"),
        *("ModuleWrapPolicy", "CustomPolicy", "transformer_auto_wrap_policy"),
        *("size_based_auto_wrap_policy", "lambda_auto_wrap_policy", "always_wrap_policy"),
        *("enable_wrap", "wrap", "_or_policy", "_module_wrap_policy", "ShardedGradScaler"),
    )
)
# Wrap policies are plain functions, and an argument of apply_activation_checkpointing as well.
POLICIES = frozenset(n for n in NAMES if n.endswith(("_policy", "Policy")))


def references(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression that is, through an import of its file, one of FSDP1's names.

    Policies do not count in a file that checkpoints activations by policy.
    """
    source = ast.unparse(tree)
    also_checkpoints = "apply_activation_checkpointing" in source
    for node in _imported(tree):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if not (also_checkpoints and name in POLICIES):
            yield node


def _imported(tree: ast.Module) -> Iterator[ast.expr]:
    direct: set[str] = set()
    modules: dict[str, str] = {}  # local name -> dotted module
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                local = alias.asname or alias.name
                whole = f"{node.module}.{alias.name}"
                if whole == PACKAGE or (whole.startswith(PACKAGE) and alias.name == "wrap"):
                    modules[local] = whole
                elif node.module.startswith(PACKAGE) and alias.name in NAMES:
                    direct.add(local)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(PACKAGE):
                    local = alias.asname or alias.name
                    modules[local] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in direct and isinstance(node.ctx, ast.Load):
            yield node
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            base = ast.unparse(node.value)
            if any(base == m or base.startswith(f"{m}.") for m in modules):
                yield node


def covered(node: ast.expr, decisions: Iterable[Decision]) -> bool:
    """Whether a reference lies in the node of some decision of its file."""
    return any(_within(node, d.site.node) or _within(node, d.site.reference) for d in decisions)


def _within(node: ast.expr, other: ast.AST) -> bool:
    first = (getattr(other, "lineno", 0), getattr(other, "col_offset", 0))
    last = (getattr(other, "end_lineno", 0), getattr(other, "end_col_offset", 0))
    start = (node.lineno, node.col_offset)
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    return first <= start and end <= last


def unaccounted(
    sources: dict[str, str], decisions: Iterable[Decision], after: dict[str, str]
) -> list[str]:
    """References of the input that no decision covers, and references of the output that no left
    site explains."""
    listed = list(decisions)
    problems: list[str] = []
    for path, text in sources.items():
        own = [d for d in listed if d.site.module.display == path]
        tree = ast.parse(text)
        missed = [n for n in references(tree) if not covered(n, own)]
        problems += [f"{path}:{n.lineno}: {ast.unparse(n)} has no outcome" for n in missed]
        stays = any(d.outcome.value == "left" or d.message.startswith("kept") for d in own)
        handed_on = any(d.message.endswith("as FSDP1 did") for d in own)
        remaining = [
            node
            for node in references(ast.parse(after.get(path, text)))
            if not (handed_on and ast.unparse(node).rpartition(".")[2] in POLICIES)
        ]
        if remaining and not stays:
            first = remaining[0]
            problems.append(f"{path}: {ast.unparse(first)} remains and nothing is left there")
    return problems


def read(directory: Path) -> dict[str, str]:
    """Every Python file below a directory that parses."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*.py")):
        data = path.read_bytes()
        try:
            ast.parse(data)
            found[path.relative_to(directory).as_posix()] = data.decode()
        except (SyntaxError, ValueError):
            continue
    return found
