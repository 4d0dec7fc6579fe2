"""Numbers of reduced DTensors that are one rank's."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import reads
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "item() and float() read this rank's part of a DTensor: what is reduced of sharded parameters "
    "is another number on each rank"
)
MAY_BE = (
    "item() and float() read this rank's part of a DTensor, where the model is one that "
    "fully_shard shards, and torch leaves the norm to be reduced (before 2.13, and infinite norms)"
)
HELP = "full_tensor() in front of it, on every rank"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for read in reads.find_reads(study, module):
        if read.is_sure:
            yield Hazard(RULE.code, module, read.node, MESSAGE, HELP, edits=read.edits)
        else:
            yield Hazard(RULE.code, module, read.node, MAY_BE, HELP, is_note=True)


RULE = Rule(code="FSDP902", name="local_number", handles=(), hazards=find)
