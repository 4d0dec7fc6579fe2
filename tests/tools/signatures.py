"""Make ``signatures/torch.json`` from released wheels: ``python -m tests.tools.signatures``.

Only the few files needed are read out of each wheel, over ranged requests (remotezip, of the
``dev`` extra). Nothing of torch is imported: definitions are found by following imports from the
public name. Run it when a torch release comes out, or when a rule emits a new name (``NAMES``).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from html import unescape
from typing import Protocol

from fsdp_migrate.signatures import DATA

INDEX = "https://pypi.org/simple/torch/"
RELEASES = (
    "2.4.0",
    "2.5.0",
    "2.6.0",
    "2.7.0",
    "2.8.0",
    "2.9.0",
    "2.10.0",
    "2.11.0",
    "2.12.0",
    "2.13.0",
    "2.14.0",
    "2.15.0",
)
STATE_DICT = "torch.distributed.checkpoint.state_dict"
FSDP = "torch.distributed.fsdp"
FUNCTIONS = (
    f"{FSDP}.fully_shard",
    f"{FSDP}.MixedPrecisionPolicy",
    f"{FSDP}.CPUOffloadPolicy",
    f"{FSDP}.OffloadPolicy",
    f"{FSDP}.register_fsdp_forward_method",
    f"{STATE_DICT}.StateDictOptions",
    f"{STATE_DICT}.get_model_state_dict",
    f"{STATE_DICT}.get_optimizer_state_dict",
    f"{STATE_DICT}.get_state_dict",
    f"{STATE_DICT}.set_model_state_dict",
    f"{STATE_DICT}.set_optimizer_state_dict",
    f"{STATE_DICT}.set_state_dict",
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.tensor.distribute_tensor",
    "torch.distributed.broadcast",
    "torch.distributed.broadcast_object_list",
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grads_with_norm_",
    "torch.nn.utils.get_total_norm",
    "torch.accelerator.current_accelerator",
    "torch.accelerator.current_device_index",
    "torch.accelerator.device_count",
    "torch.amp.GradScaler",
    "torch.export.register_dataclass",
)
METHODS = (
    *(
        f"{FSDP}.FSDPModule.{name}"
        for name in (
            "reshard",
            "set_all_reduce_hook",
            "set_is_last_backward",
            "set_modules_to_backward_prefetch",
            "set_modules_to_forward_prefetch",
            "set_requires_all_reduce",
            "set_requires_gradient_sync",
            "set_reshard_after_backward",
            "set_reshard_after_forward",
            "set_unshard_in_backward",
            "unshard",
        )
    ),
    "torch.distributed.tensor.DTensor.full_tensor",
    "torch.distributed.tensor.DTensor.to_local",
    "torch.nn.Module.to_empty",
)


class Archive(Protocol):
    def namelist(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...


class Wheel:
    """The Python sources of one torch release."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._files = frozenset(archive.namelist())
        self._parsed: dict[str, ast.Module] = {}

    def module(self, dotted: str) -> tuple[ast.Module, str] | None:
        """The parsed module, and the package its relative imports start from."""
        path = dotted.replace(".", "/")
        for file, package in (
            (f"{path}/__init__.py", dotted),
            (f"{path}.py", dotted.rpartition(".")[0]),
        ):
            if file in self._files:
                if file not in self._parsed:
                    self._parsed[file] = ast.parse(self._archive.read(file))
                return self._parsed[file], package
        return None

    def definition(self, dotted: str, depth: int = 0) -> ast.FunctionDef | ast.ClassDef | None:
        """What ``dotted`` finally is, imports followed."""
        where, _, name = dotted.rpartition(".")
        found = self.module(where) if depth < 10 else None
        if found is None:
            return None
        tree, package = found
        stars: list[str] = []
        result: ast.FunctionDef | ast.ClassDef | None = None
        for node in _statements(tree.body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                result = node  # the last one: overloads come before the implementation
            elif isinstance(node, ast.ImportFrom):
                source = _absolute(node, package)
                for alias in node.names:
                    if alias.name == "*":
                        stars.append(source)
                    elif (alias.asname or alias.name) == name:
                        result = self.definition(f"{source}.{alias.name}", depth + 1) or result
        for source in stars:
            result = result or self.definition(f"{source}.{name}", depth + 1)
        return result

    def function(self, dotted: str) -> str | None:
        """The parameters of a function, or of a class called to make an instance."""
        found = self.definition(dotted)
        if isinstance(found, ast.ClassDef):
            return self._constructor(found)
        return _parameters(found) if found is not None else None

    def method(self, dotted: str) -> str | None:
        """The parameters of a method, ``self`` taken off."""
        owner, _, name = dotted.rpartition(".")
        found = self.definition(owner)
        for node in found.body if isinstance(found, ast.ClassDef) else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return _parameters(node, bound=True)
        return None

    def _constructor(self, found: ast.ClassDef) -> str:
        for node in found.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return _parameters(node, bound=True)
        fields = [n for n in found.body if isinstance(n, ast.AnnAssign)]
        return ", ".join(
            f"{ast.unparse(f.target)}=..." if f.value is not None else ast.unparse(f.target)
            for f in fields
        )


def _statements(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Top-level statements, those under ``if`` and ``try`` included."""
    result: list[ast.stmt] = []
    for node in body:
        result.append(node)
        for name in ("body", "orelse"):
            if isinstance(node, (ast.If, ast.Try)):
                result += _statements(getattr(node, name))
    return result


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _parameters(node: ast.FunctionDef, *, bound: bool = False) -> str:
    """The parameter list, defaults and annotations left out, as ``ast`` writes it."""
    args = node.args
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            arg.annotation = None
    some = ast.Constant(...)
    args.defaults = [some for _ in args.defaults]
    args.kw_defaults = [d and some for d in args.kw_defaults]
    if bound:
        args = ast.arguments(
            args.posonlyargs,
            args.args[1:],
            args.vararg,
            args.kwonlyargs,
            args.kw_defaults,
            args.kwarg,
            args.defaults,
        )
    return ast.unparse(args)


def wheel_address(release: str, index: str) -> str:
    """Where a Linux wheel of a release lies."""
    listing = f"{index.rstrip('/')}/torch/"
    with urllib.request.urlopen(listing) as answer:
        page = answer.read().decode()
    for address, name in re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', page):
        if name.startswith(f"torch-{release}-") and "manylinux" in name and "x86_64" in name:
            return urllib.parse.urljoin(listing, unescape(address)).partition("#")[0]
    raise SystemExit(f"no wheel of torch {release}")


def history(found: Sequence[tuple[str, str | None]]) -> dict[str, str | None]:
    """Only the releases in which something changed."""
    result: dict[str, str | None] = {}
    for release, parameters in found:
        if not result or list(result.values())[-1] != parameters:
            result[release] = parameters
    return result


def main(argv: Sequence[str] | None = None) -> None:
    from remotezip import RemoteZip

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index", help="address of a package index, as pip takes it")
    parser.add_argument("releases", nargs="*", default=RELEASES, help="torch releases")
    given = parser.parse_args(argv)
    releases = given.releases
    found: dict[str, list[tuple[str, str | None]]] = {n: [] for n in (*FUNCTIONS, *METHODS)}
    short = [".".join(r.split(".")[:2]) for r in releases]
    for release, name in zip(releases, short, strict=True):
        print(f"torch {release}", file=sys.stderr)
        with RemoteZip(wheel_address(release, given.index)) as archive:
            wheel = Wheel(archive)
            for function in FUNCTIONS:
                found[function].append((name, wheel.function(function)))
            for method in METHODS:
                found[method].append((name, wheel.method(method)))
    data = {
        "releases": short,
        "functions": {n: history(found[n]) for n in FUNCTIONS},
        "methods": {n: history(found[n]) for n in METHODS},
    }
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
