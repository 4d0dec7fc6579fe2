"""Hold a model's whole migration back when part of it would go quietly wrong."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP190", name="held_back", handles=())
