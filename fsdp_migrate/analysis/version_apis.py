"""What packages offer to ask for torch's version: constants, getters and functions that compare."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.version import Version

from fsdp_migrate.analysis.torch_versions import (
    DISTRIBUTION,
    REQUIREMENT,
    Given,
    Reading,
    Torch,
    answer_to,
    parse_version,
)
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import walk

PACKAGING = (
    *("packaging", "setuptools.extern.packaging"),
    *("pkg_resources.packaging", "pkg_resources.extern.packaging"),
)
PARSERS = frozenset(
    (
        *(f"{p}.version.{name}" for p in PACKAGING for name in ("parse", "Version")),
        "pkg_resources.parse_version",
        *("distutils.version.LooseVersion", "distutils.version.StrictVersion"),
        *("looseversion.LooseVersion", "torch.torch_version.TorchVersion"),
        *(f"{m}.digit_version" for m in ("mmengine", "mmengine.utils", "mmcv", "mmcv.utils")),
        *(f"{m}.version_utils.digit_version" for m in ("mmengine.utils", "mmcv.utils")),
    )
)
DIGITS = "digit_version"  # OpenMMLab's, which many projects have a copy of
OF_PACKAGES = frozenset(
    ("importlib.metadata.version", "importlib_metadata.version", "pkg_resources.get_distribution")
)
VERSIONS: Mapping[str, Torch] = {
    "torch.__version__": Torch("text"),
    "torch.torch_version.__version__": Torch("text"),
    "torch.version.__version__": Torch("plain"),
    "accelerate.utils.versions.torch_version": Torch("version"),
    "transformers.utils.import_utils._torch_version": Torch("plain"),
}
GETTERS: Mapping[str, Torch] = {
    "transformers.utils.get_torch_version": Torch("plain"),
    "transformers.utils.import_utils.get_torch_version": Torch("plain"),
}
ASKING = "is_torch_version"
LIBRARIES = frozenset({"accelerate", "transformers", "diffusers", "peft", "optimum"})
AT_LEAST = frozenset(
    f"transformers.{module}.is_torch_greater_or_equal"
    for module in ("utils", "utils.import_utils", "pytorch_utils")
)
CONSTANTS = re.compile(
    r"(?:transformers\.pytorch_utils\.(?:parsed_torch_version_base|is_torch_(?P<than>"
    r"greater_or_equal_than|less_than)_(?P<ours>\d+(?:_\d+)*))"
    r"|(?:lightning|lightning_fabric|pytorch_lightning)(?:\.\w+)*\._TORCH_(?P<op>GREATER_EQUAL|"
    r"LESS_EQUAL|LESS|GREATER|EQUAL)_(?P<theirs>\d+(?:_\d+)*))"
)
SAID = {"GREATER_EQUAL": ">=", "LESS_EQUAL": "<=", "LESS": "<", "GREATER": ">", "EQUAL": "=="}
SAID |= {"greater_or_equal_than": ">=", "less_than": "<"}
COMPARING = frozenset(
    f"{module}.compare_version"
    for module in (
        *("lightning_utilities.core.imports", "lightning_utilities"),
        *("torchmetrics.utilities.imports", "lightning.fabric.utilities.imports"),
    )
)
REQUIRING = frozenset(
    f"{module}.RequirementCache"
    for module in (
        "lightning_utilities.core.imports",
        "lightning_utilities.core",
        "lightning_utilities",
    )
)
OPERATORS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
TELLING = frozenset({*PARSERS, *OF_PACKAGES, *GETTERS, *AT_LEAST, *COMPARING, *REQUIRING})


def may_tell(name: str) -> bool:
    """Whether a call of another package's function may have something of torch's version."""
    return name in TELLING or name.rpartition(".")[2] == ASKING


def known_name(name: str, target: Version) -> Reading:
    """What a name of another package stands for."""
    if name in VERSIONS:
        return VERSIONS[name]
    found = CONSTANTS.fullmatch(name)
    if found is None:
        return None
    if found["than"] is None and found["op"] is None:
        return Torch("version")
    numbers = (found["ours"] or found["theirs"]).replace("_", ".")
    return answer_to(Given(SAID[found["than"] or found["op"]]), Given(numbers), target)


def call_of(
    name: str,
    node: ast.Call,
    given: Sequence[Reading],
    names: Callable[[ast.expr], Iterable[str]],
    target: Version,
) -> Reading:
    """What a call of another package's function gives, whose arguments are read already.

    ``names`` tells what an expression stands for by imports.
    """
    first = given[0] if given else None
    if name in PARSERS and len(given) == 1:
        return parse_version(first)
    if name in OF_PACKAGES and first == Given("torch"):
        return DISTRIBUTION if name.endswith("distribution") else Torch("plain")
    if name in GETTERS and not given:
        return GETTERS[name]
    library, _, last = name.partition(".")
    if library in LIBRARIES and last.rpartition(".")[2] == ASKING and len(given) == 2:
        return answer_to(first, given[1], target)
    if name in AT_LEAST and given:
        return answer_to(Given(">="), first, target)
    if name in COMPARING and len(given) == 3 and first == Given("torch"):
        asked = {
            OPERATORS.get(n.removeprefix("operator."))
            for n in names(node.args[1])
            if n.startswith("operator.")
        }
        if len(asked) == 1:
            return answer_to(Given(asked.pop()), given[2], target)
    if name in REQUIRING and len(given) == 1 and not node.keywords:
        text = first.value if isinstance(first, Given) else None
        found = REQUIREMENT.fullmatch(text) if isinstance(text, str) else None
        # Where torch is missing the requirement does not hold either; but then nothing here runs.
        return answer_to(Given(found[1]), Given(found[2]), target) if found is not None else None
    return None


def is_digit_version(function: ast.FunctionDef) -> bool:
    """Whether a function of OpenMMLab's name makes a tuple of a version's numbers."""
    called = {last_name(n.func) for n in walk(function) if isinstance(n, ast.Call)}
    last = function.body[-1]
    listed = isinstance(last, ast.Return) and not called.isdisjoint(("parse", "split", "Version"))
    return listed and not called.isdisjoint(("tuple", "append", "extend", "list"))
