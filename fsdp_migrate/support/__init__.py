"""The support module: plain torch functions written into the user's project when needed."""

from fsdp_migrate.support.placement import place

__all__ = ["place"]
