"""What users can put right."""

from __future__ import annotations


class InputError(Exception):
    """The command cannot be carried out; the message says why, and names the file or option."""


class ConfigError(InputError):
    """The configuration is wrong. The message names the file and the key."""
