"""Migrate what accelerate configures of FSDP1."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.configurations import handed_on
from fsdp_migrate.configurations.frameworks import accelerate
from fsdp_migrate.configurations.settings import Change
from fsdp_migrate.configurations.variables import variable_of
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Finder, Rule

SETTINGS = Construct.parse("settings of accelerate")
READS = "accelerate reads it in what this program starts, or in itself, and trains FSDP1"


def _find(study: Study, module: Module) -> Iterator[Site]:
    for found in handed_on.settings(module, study):
        if handed_on.is_of_version_1(found.settings) and accelerate.migrate(found.settings):
            yield Site(SETTINGS, module, found.node, found.node)


RULE = Rule(
    code="FSDP510",
    name="accelerate",
    handles=(str(SETTINGS),),
    finders=(Finder(264, _find, always=True),),
)


def decide(site: Site, study: Study) -> Decision:
    """What a program hands on is left, with what to write there."""
    every = handed_on.settings(site.module, study)
    found = next(each for each in every if each.node is site.node)
    changes = accelerate.migrate(
        found.settings, study.project.library.pinned("accelerate", site.module.path)
    )
    for change in changes:
        if change.outcome is Outcome.LEFT:
            return study.left(site, RULE.code, change.message, change.help)
    told = [_todo(change, found.form) for change in changes]
    return study.left(site, RULE.code, READS, "; ".join(filter(None, told)))


def _todo(change: Change, form: str) -> str:
    def shown(name: str) -> str:
        spelled = {handed_on.FLAGS: f"--{name}", handed_on.KEY: name}
        return spelled.get(form, variable_of(name))

    if change.new is None:
        return f"remove {shown(change.old)}"
    name, value = change.new
    if change.outcome is Outcome.REVIEW and change.old == name:
        return change.message
    text = str(value).lower() if isinstance(value, bool) else value
    between = {handed_on.FLAGS: " ", handed_on.KEY: ": "}.get(form, "=")
    return f"write {shown(name)}{between}{text}" + (
        f" in the place of {shown(change.old)}" if change.old and change.old != name else ""
    )
