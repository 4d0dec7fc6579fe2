"""Raise what the project requires of torch to what the new code needs."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP501", name="torch_requirement", handles=())
