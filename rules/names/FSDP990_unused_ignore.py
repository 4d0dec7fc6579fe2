"""Remove ignore comments that ignore nothing."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP990", name="unused_ignore", handles=())
