"""Get the recorder into a training process that knows nothing of it.

``site/`` holds a ``sitecustomize`` that Python imports by itself at start-up when the folder is on
``PYTHONPATH``. It hands over to :mod:`~fsdp_migrate.verify.inject.boot`, which waits for the
program to import torch. Nothing here imports torch.
"""

from pathlib import Path

SITE = Path(__file__).parent / "site"
"""The folder that goes first on ``PYTHONPATH``."""

WORKER = Path(__file__).parent / "worker.py"
"""Runs a script with the recorder in place, for where ``PYTHONPATH`` is not honoured."""

SERVER = Path(__file__).parent / "server.py"
"""Imports torch once and forks ranks."""

SAVED = Path(__file__).parent / "saved.py"
"""Compares what two runs saved, in a process that has torch."""
