"""The support module: plain torch functions written into the user's project when needed."""

from fsdp_migrate.support.placement import Placed, place

__all__ = ["Placed", "place"]
