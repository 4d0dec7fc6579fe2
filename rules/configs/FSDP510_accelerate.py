"""Migrate what accelerate configures of FSDP1."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP510", name="accelerate", handles=())
