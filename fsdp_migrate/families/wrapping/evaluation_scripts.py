"""Tell scripts that run a model without training it, to which much of FSDP makes no difference."""

from __future__ import annotations

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project

EVALUATES = ("no_grad", "inference_mode")
TRAINS = frozenset({"backward", "fit", "grad"})
SAVES = ("state_dict", "save_pretrained", "summon_full_params", "Trainer", "Accelerator")


def only_evaluates(module: Module, project: Project) -> bool:
    """Whether a file is a script that nobody imports, that runs its model without gradients, and
    that neither trains nor saves: nor does what it imports of the project."""
    if not module.mentions("__main__") or not module.mentions(*EVALUATES):
        return False
    importers = (other for other in project.modules if other.mentions(module.path.stem))
    if any(module in _imported(other, project) for other in importers if other is not module):
        return False
    reached, ahead = {module}, [module]
    while ahead:
        importer = ahead.pop()
        if importer.mentions(*SAVES) or any(importer.table.calls_by_name.of(TRAINS)):
            return False
        new = _imported(importer, project) - reached
        reached |= new
        ahead += new
    return True


def _imported(importer: Module, project: Project) -> set[Module]:
    """The modules of the project that a file imports."""
    found = (project.resolve(b.qualified, importer) for b in importer.table.imports)
    return {resolved[0] for resolved in found if resolved is not None}
