"""The command that starts a training script on several ranks."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.plan import Plan


def command(plan: Plan, *, tree: Path, logs: Path, worker: bool) -> list[str]:
    """The torchrun command line for ``plan`` in the scratch copy ``tree``, run in its workdir.

    ``--standalone`` makes torchrun pick free ports itself; ``--redirects 3`` gives every rank log
    files of its own. With ``worker`` the script runs below our own start-up file, for interpreters
    that do not import the injected ``sitecustomize``.
    """
    launch = [plan.python, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={plan.nproc}", f"--log-dir={logs}", "--redirects=3"]
    if plan.module is not None:
        target = [str(inject.WORKER), "-m", plan.module] if worker else ["-m", plan.module]
    else:
        script = _below(tree, plan)
        target = [str(inject.WORKER), script] if worker else [script]
    return [*launch, *target, *plan.args]


def _below(tree: Path, plan: Plan) -> str:
    """The script as the user would name it from the working directory."""
    script, workdir = PurePosixPath(plan.script), PurePosixPath(plan.workdir)
    if script.is_relative_to(workdir):
        return str(script.relative_to(workdir))
    return str(tree / script)


def rank_logs(logs: Path) -> dict[int, dict[str, Path]]:
    """The log files torchrun wrote: rank -> ``{"stdout": ..., "stderr": ...}``."""
    found: dict[int, dict[str, Path]] = {}
    for path in logs.glob("**/std*.log"):
        if path.parent.name.isdigit():
            found.setdefault(int(path.parent.name), {})[path.stem] = path
    return found
