"""Remove code that only torch releases before the target run."""

from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.migration import dead_code
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(code="FSDP423", name="older-torch", handles=("code for older torch",))


def decide(site: Site, study: Study) -> Decision:
    return dead_code.decide(site, study, RULE.code)
