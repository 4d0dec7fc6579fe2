"""Migrate what axolotl configures of FSDP1."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP540", name="axolotl", handles=())
