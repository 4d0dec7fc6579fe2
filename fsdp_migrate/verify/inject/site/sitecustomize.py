"""Imported by Python itself at start-up, because its folder is first on PYTHONPATH.

It must never harm the program: it does nothing unless the variable is set, and it hands over to any
other ``sitecustomize`` that it hides.
"""

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from typing import Any


class _Package:
    """Finds ``fsdp_migrate`` where it lives, without adding a folder to ``sys.path``."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != "fsdp_migrate":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self.root])


def _hand_over() -> None:
    """Run the ``sitecustomize`` that this one hides, as Python would have."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p or os.getcwd()) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start() -> None:
    text = os.environ.get("FSDP_MIGRATE_VERIFY")
    if not text:
        return
    finder = _Package(json.loads(text)["package_root"])
    sys.meta_path.insert(0, finder)
    try:
        from fsdp_migrate.verify.inject import boot

        boot.start()
    except Exception:  # the program must run as if we were not here
        folder = json.loads(text)["folder"]
        with open(os.path.join(folder, f"boot-error-{os.getpid()}.txt"), "w") as file:
            traceback.print_exc(file=file)


_start()
with contextlib.suppress(ImportError):
    _hand_over()
