"""Say what takes the place of MindSpeed-MM's FSDP1, and what is wrong in its file for FSDP2."""

from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP570", name="mindspeed", handles=())
