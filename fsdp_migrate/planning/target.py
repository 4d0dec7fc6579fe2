"""The torch releases that code can be migrated for."""

from packaging.version import Version

DEFAULT_TARGET = Version("2.7")
OLDEST = Version("2.6")  # with a public fully_shard
FIRST = Version("2.4")  # with FSDP2 at all
