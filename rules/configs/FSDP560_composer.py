"""Migrate what YAML configures of composer's FSDP1, llm-foundry's above all."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP560", name="composer", handles=())
