"""Migrate what transformers configures of FSDP1."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP520", name="transformers", handles=())
