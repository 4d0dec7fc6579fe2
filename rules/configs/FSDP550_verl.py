"""Migrate what verl configures of FSDP1."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP550", name="verl", handles=())
