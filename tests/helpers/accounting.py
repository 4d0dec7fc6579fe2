"""An independent count of FSDP1 references, to hold the tool's own against.

Deliberately naive: names imported from ``torch.distributed.fsdp`` and what is written with them,
found with nothing but ``ast``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsdp_migrate.planning.model import Decision

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


WRAPPERS = ("_fsdp_wrapped_module", "_flat_param", "_fpw_module")
# Modules of the package that are FSDP1's alone.
MODULES = frozenset(
    {
        *("_common_utils", "_flat_param", "_init_utils", "_optim_utils", "_runtime_utils"),
        *("_state_dict_utils", "_traversal_utils", "_unshard_param_utils", "_wrap_utils", "api"),
        *("flat_param", "fully_sharded_data_parallel", "sharded_grad_scaler", "wrap"),
    }
)
FSDP2 = re.compile(r"fully_shard|FSDPModule|MixedPrecisionPolicy|OffloadPolicy")
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
IMPORT = re.compile(r"(?m)^\s*from torch\.distributed\.fsdp[.\w]* import (\w+(?:, ?\w+)*)$")


def spelled(tree: ast.Module, *, look_alike: bool = False) -> Iterator[ast.expr | ast.alias]:
    """Every place that names FSDP1 in a string; not docstrings, and nothing that is prose.

    ``look_alike``: parts of parameter names are another library's.
    """
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    imported = _local_names(tree)
    run = _run(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(parents[node], ast.Expr):
                continue
            named = isinstance(node.value, str) and (
                _is_name(text)
                or _is_lookup(text, node, parents)
                or (node in run and any(NAMES & set(m.split(", ")) for m in IMPORT.findall(text)))
                or (_is_annotation(node, parents) and imported & set(re.findall(r"\w+", text)))
            )
            part = not look_alike and any(name in text for name in WRAPPERS)
            if named or (part and not _is_sentence(text, parents[node])):
                yield node
        elif isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets):
            listed = {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
            yield from (alias for name, alias in _aliases(tree) if name in listed)


def _is_sentence(text: str, around: ast.AST) -> bool:
    """Whether a text is for people: several words, or an f-string with a space, and no code."""
    in_f_string = isinstance(around, ast.JoinedStr)
    if in_f_string:
        text = re.sub(r"\{.*?\}", "x", ast.unparse(around)[2:-1].replace("\\n", "\n"))
    try:
        body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        body = []
    for_people = all(isinstance(s, ast.AnnAssign) and s.value is None for s in body)
    return for_people and len(text.split()) >= (2 if in_f_string else 4) and "\\" not in text


def _run(tree: ast.Module) -> set[ast.AST]:
    """What is written in, or assigned to a name in, a call that runs or writes text."""
    runners = {"exec", "run", "write_text"}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    inside = [
        n for c in calls if ast.unparse(c.func).split(".")[-1] in runners for n in ast.walk(c)
    ]
    names = {n.id for n in inside if isinstance(n, ast.Name)}
    assigned = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and names & set(map(ast.unparse, n.targets))
    ]
    return {*inside, *assigned}


def _aliases(tree: ast.Module) -> Iterator[tuple[str, ast.alias]]:
    """FSDP1's names as a file imports them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                if alias.name in NAMES and not node.level:
                    yield alias.asname or alias.name, alias


def _local_names(tree: ast.Module) -> set[str]:
    return {name for name, _ in _aliases(tree)}


def _is_name(text: str) -> bool:
    if not re.fullmatch(r"torch\.distributed\.fsdp(\.\w+)+", text):
        return False
    parts = text.split(".")[3:]
    return bool(NAMES & set(parts)) or parts[0] in MODULES


def _is_lookup(text: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether a string is what a module, or one of its names, is got by."""
    parent = parents[node]
    if isinstance(parent, ast.Subscript):
        return text == PACKAGE and ast.unparse(parent.value) == "sys.modules"
    if not isinstance(parent, ast.Call):
        return False
    function = ast.unparse(parent.func).rpartition(".")[2]
    if function in {"import_module", "__import__"}:
        return text == PACKAGE and not FSDP2.search(ast.unparse(parents[parent]))
    owner = ast.unparse(parent.args[0]) if parent.args else ""
    return function in BY_NAME and text in NAMES and owner == PACKAGE


def _is_annotation(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    while isinstance(node, (ast.Constant, ast.Subscript, ast.Tuple, ast.BinOp, ast.List)):
        child, node = node, parents[node]
        if isinstance(node, ast.Subscript) and "Lit" in ast.unparse(node.value):
            return False
        if isinstance(node, ast.Subscript) and "Annotated" in ast.unparse(node.value):
            return False  # the rare one that is annotated itself
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] == "cast" and node.args[0] is child
    return child in (getattr(node, "annotation", None), getattr(node, "returns", None))


def covered(node: ast.expr | ast.alias, decisions: Iterable[Decision]) -> bool:
    """Whether a reference lies in the node of some decision of its file."""
    return any(_within(node, d.site.node) or _within(node, d.site.reference) for d in decisions)


def _within(node: ast.expr | ast.alias, other: ast.AST) -> bool:
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
    trees = {path: ast.parse(text) for path, text in sources.items()}
    like_it = any("import fairscale" in t or "from fairscale" in t for t in sources.values())
    look_alike = like_it and not any(n for tree in trees.values() for n in references(tree))
    reached = bool(listed) or any("distributed.fsdp" in text for text in sources.values())
    for path, text in sources.items():
        own = [d for d in listed if d.site.module.display == path]
        tree = trees[path]
        named = spelled(tree, look_alike=look_alike) if reached else ()
        missed = [n for n in (*references(tree), *named) if not covered(n, own)]
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
