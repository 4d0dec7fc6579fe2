"""FSDP1 names that no rule knows.

## What changes
Nothing: the site is reported and marked.

## Why
x

## What stays for you
y

## Since torch
2.6

## References
- z
"""

from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(code="FSDP499", name="no_rule", handles=("*",), since="2.4")
EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    return study.left(site, RULE.code, f"no rule for {site.construct}", "migrate it by hand")
