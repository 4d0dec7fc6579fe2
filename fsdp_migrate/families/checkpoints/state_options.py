"""The options of torch's functions for states."""

from __future__ import annotations

from fsdp_migrate.planning.edits import Code, Named


def state_options(maker: str, flags: Code | str, *, load: bool = False) -> Code:
    """``StateDictOptions(...)``, which a function that writes it twice calls ``options``."""
    return Named("{o}({f})", {"o": maker, "f": flags}, "options", "load" if load else "get")
