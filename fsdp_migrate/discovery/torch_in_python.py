"""Which torch a program of Python starts others with: in a container, an image or an environment.

``PyTorch(framework_version="2.0.1", entry_point="train.py")`` of SageMaker, the name of an image,
``image.pip_install("torch==2.0.1")`` of Modal, ``{"pip": ["torch==2.0.1"]}`` of Ray: files and the
cells of notebooks are read as trees, so that comments, docstrings and messages count for nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from fsdp_migrate.syntax import magics
from fsdp_migrate.syntax.notebook import SUFFIX, Notebook, NotebookError

SPEAKS = re.compile(
    rb"framework_version|pytorch_version|image_uris|\btorch[\"' ]*[:=~<]|pytorch[\w./-]*[:=~<.-]",
    re.IGNORECASE,
)
"""What a file has somewhere that says so."""

RELEASE = r"(?P<release>\d+\.\d+(?:\.\d+)?)"
IMAGES = (  # the names of images, with the torch that is in them
    r"(?:pytorch|mosaicml)/pytorch:(?P<image>\d+\.\d+(?:\.\d+)?)"
    r"|(?<![\w/-])(?:[\w.-]+/)?(?:huggingface-)?pytorch-training(?:-[\w-]+)?"
    r":(?P<sagemaker>\d+\.\d+(?:\.\d+)?)"
    r"|rocm/pytorch:[\w.-]*pytorch_(?:release[-_])?(?P<rocm>\d+\.\d+(?:\.\d+)?)"
    r"|acpt-pytorch-(?P<azure>\d+\.\d+)"
    r"|/training/pytorch-[a-z]+\.(?P<vertex>\d+-\d+)"
)
IN_IMAGE = ("image", "sagemaker", "rocm", "azure", "vertex")  # the groups of these
_IMAGE = re.compile(IMAGES, re.IGNORECASE)
_REQUIREMENT = re.compile(
    rf"(?:pytorch::)?(?:py)?torch(?P<operator>={{1,3}}|<=?|~=){RELEASE}(?![\w*]).*", re.IGNORECASE
)
_COMMAND = re.compile(
    rf"\binstall\b[^;&|\n]*?(?<![\w.-])(?:py)?torch(?P<operator>={{1,3}}|<=?|~=){RELEASE}",
    re.IGNORECASE,
)
_NUMBER = re.compile(RELEASE)
_TABLES = frozenset({"packages", "libraries"})  # of names and releases, in Metaflow
_TESTS = re.compile(r"test_.*|.*_test|conftest|setup")  # setup.py's requirements are read elsewhere
_SAYS = re.compile(
    r"print|echo|warn\w*|info|debug|error|critical|exception|log\w*|skip\w*|xfail|parametrize"
    r"|\w*(?:Error|Warning|Exception)"
)
"""Calls whose texts are for people."""

Found = tuple[int, str, str, str]
"""The line, the text as it is shown, the operator and the release."""


def find(path: Path, data: bytes) -> Iterator[Found]:
    """What a file of Python or a notebook says; nothing where it is not read."""
    if not SPEAKS.search(data):
        return
    if path.suffix == SUFFIX:
        try:
            notebook = Notebook.read(data, path)
        except NotebookError:
            return
        names = (magics.NAME.format("cell", number) for number in count())
        for cell in notebook.cells:
            text, _ = magics.mask_commands(cell.code, names)
            for line, said, operator, release in _in_source(text):
                yield notebook.line(cell, line), said, operator, release
    elif not _TESTS.fullmatch(path.stem):
        yield from _in_source(data)


def _in_source(source: str | bytes) -> Iterator[Found]:
    try:
        tree = ast.parse(source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return
    given = _Given(tree)
    for node in given.nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node, given)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _of_text(node, node.value)


class _Given:
    """What a file hands to others: all of its tree but texts for people, and its plain names."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = list(_handed(tree))
        self.named: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.named.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.named.setdefault(name, []).append(value)

    def value(self, node: ast.expr) -> ast.expr:
        """What stands for it: the one value of a name."""
        if isinstance(node, ast.Name):
            values = self.named.get(node.id, [])
            return values[0] if len(values) == 1 else node
        return node

    def keywords(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """The arguments of a call by their names, with those that ``**`` of a dictionary gives."""
        for each in call.keywords:
            if each.arg is not None:
                yield each.arg, each.value
                continue
            match self.value(each.value):
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield key.value, value
                case ast.Call(func=ast.Name(id="dict"), keywords=inner):
                    yield from ((k.arg, k.value) for k in inner if k.arg is not None)


def _handed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Raise() | ast.Assert() | ast.Compare() | ast.JoinedStr():
                continue
            case ast.Expr(value=ast.Constant()):  # a docstring
                continue
            case ast.Call() if _SAYS.fullmatch(_name(child.func)):
                continue
        yield from _handed(child)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _of_call(call: ast.Call, given: _Given) -> Iterator[Found]:
    name = _name(call.func)
    arguments = dict(given.keywords(call))
    words = {
        node.value.lower()
        for node in map(given.value, (*call.args[:1], *filter(None, [arguments.get("framework")])))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    estimator = arguments.get("estimator_cls")
    is_torchs = name.startswith("PyTorch") or (
        estimator is not None and _name(given.value(estimator)) == "PyTorch"
    )
    # See https://sagemaker.readthedocs.io/en/stable/frameworks/pytorch/sagemaker.pytorch.html.
    if is_torchs and "Model" not in name:
        wanted = ["framework_version"]
    elif name.startswith("HuggingFace") and "Model" not in name:
        wanted = ["pytorch_version"]
    elif name == "retrieve" and "pytorch" in words and "training" in _scope(arguments):
        wanted = ["version"]
    elif name == "retrieve" and "huggingface" in words:
        wanted = ["base_framework_version"]
    else:
        wanted = []
    for keyword in wanted:
        match given.value(arguments.get(keyword, call)):
            case ast.Constant(value=str(text)) if found := _NUMBER.search(text):
                yield arguments[keyword].lineno, f'{keyword}="{text}"', "==", found["release"]
    for keyword in _TABLES & arguments.keys():
        yield from _of_table(arguments[keyword], given)


def _scope(arguments: dict[str, ast.expr]) -> str:
    """What an image is for; for training, where that is not said by a text."""
    match arguments.get("image_scope"):
        case ast.Constant(value=str(text)):
            return text
    return "training"


def _of_table(table: ast.expr, given: _Given) -> Iterator[Found]:
    match given.value(table):
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                match key, value:
                    case (
                        ast.Constant(value="torch" | "pytorch" as name),
                        ast.Constant(value=str(text)),
                    ) if found := re.match(rf"(?P<operator>={{2}}|<=?|~=)?{RELEASE}", text):
                        sign = found["operator"] or "=="
                        yield (
                            value.lineno,
                            f"{name}{sign}{found['release']}",
                            sign,
                            found["release"],
                        )


def _of_text(node: ast.Constant, text: str) -> Iterator[Found]:
    if image := _IMAGE.search(text):
        yield node.lineno, image[0], "==", release_of(image)
    whole = _REQUIREMENT.fullmatch(text.strip())
    for match in [whole] if whole else _COMMAND.finditer(text):
        line = node.lineno + text.count("\n", 0, match.start("release"))
        line = min(line, node.end_lineno or line)  # where line ends are spelled
        shown = f"torch{match['operator']}{match['release']}"
        yield line, shown, match["operator"], match["release"]


def release_of(image: re.Match[str]) -> str:
    """The release of torch in an image that :data:`IMAGES` found."""
    return next(image[name] for name in IN_IMAGE if image[name]).replace("-", ".")
