"""FSDP1 that is configured, not called: settings in YAML, JSON, TOML, shell scripts and the like.

A *format* reads a file to settings and writes what becomes of them; a *framework* says what
becomes of them. Neither knows the other: what both know is in ``settings.py``.
"""
