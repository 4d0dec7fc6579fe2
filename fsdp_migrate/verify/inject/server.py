"""Start ranks by forking a process that has imported torch already.

A training run of a small program is nearly all start-up: importing torch takes seconds in every
rank of every run. This program imports it once, then forks one process per rank whenever it is
told to, in the environment that torchrun would give it. It holds no process group, no thread and
no CUDA context, which a fork could not take along.

It is run as a script by the interpreter of the project. Requests come as lines of JSON on standard
input, answers go as lines of JSON to standard output:

``{"env": {...}, "cwd": "...", "target": [...], "world": 2, "logs": "..."}`` is
answered by ``{"code": 0}`` once all ranks have ended. ``target`` is ``[script, argument, ...]`` or
``["-m", module, argument, ...]``. When a rank fails, the others are ended after a grace period.
A world of 0 is one process that is no rank: as if the interpreter had been started on the program.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

GRACE_S = 5.0
"""How long the other ranks may go on once one has failed."""

_ANSWERS = 3
"""File descriptor of the answers: what the program prints must not get among them."""


def main() -> None:
    """Serve until standard input closes; in a forked rank, run the program."""
    sys.path.pop(0)  # this file's own folder, which is not the program's business
    os.dup2(1, _ANSWERS)
    os.dup2(2, 1)
    _import_ahead()
    _answer({"ready": True})
    rank = _serve()
    _end(_exit_code(lambda: _run_program(rank)) if rank is not None else 0)


def _import_ahead() -> None:
    """What nearly every rank would import, including this package's own recorder."""
    root = os.path.dirname(os.path.abspath(__file__))
    for _ in range(3):
        root = os.path.dirname(root)
    sys.path.append(root)
    # Whoever asks for a GPU while importing must not make a CUDA context (torch/cuda/__init__.py).
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.utils.data

    # Programs leave no bytecode, which would be files that they write. The recorder's own spares
    # each process that a program starts anew a tenth of a second.
    sys.dont_write_bytecode = "--keep-bytecode" not in sys.argv
    import fsdp_migrate.verify.capture.attach
    import fsdp_migrate.verify.inject.boot
    import fsdp_migrate.verify.inject.store  # noqa: F401
    from fsdp_migrate.verify.capture import session

    sys.dont_write_bytecode = True
    sys.path.remove(root)
    session.holders("")  # looks at all modules
    assert torch.distributed.fsdp  # imported for the ranks
    # The objects made so far are nobody's model: ranks need not look through them.
    gc.collect()
    gc.freeze()


def _serve() -> dict[str, Any] | None:
    """Handle requests; answers None at their end, and in a forked rank what it is to run."""
    from fsdp_migrate.verify.inject import store

    for line in sys.stdin:
        request = json.loads(line)
        meeting = store.start()
        children: dict[int, int] = {}
        for rank in range(request["world"] or 1):
            pid = os.fork()
            if pid == 0:
                meeting.release()
                return {**request, "rank": rank, "store": meeting.environment()}
            children[pid] = rank
        code = _wait(children, request["logs"], ranks=request["world"] > 0)
        meeting.close()
        _answer({"code": code})
    return None


def _answer(fields: dict[str, Any]) -> None:
    os.write(_ANSWERS, (json.dumps(fields) + "\n").encode())


def _wait(children: dict[int, int], logs: str, *, ranks: bool) -> int:
    """Wait for all ranks; the code of the first that failed, negative for a signal."""
    code, failed_at = 0, 0.0
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            rank = children.pop(pid)
            ended = os.waitstatus_to_exitcode(status)
            if ended and not code:
                code, failed_at = ended, time.monotonic()
                if not ranks:
                    continue
                with open(os.path.join(logs, "launcher.log"), "a", encoding="utf-8") as log:
                    # In the words of torchrun, whose output is read for the same facts.
                    log.write(f"failed (exitcode: {ended}) local_rank: {rank} (pid: {pid})\n")
        elif pid == 0:
            time.sleep(0.02)
        if code and time.monotonic() - failed_at > GRACE_S:
            for other in children:
                os.kill(other, signal.SIGKILL)
            failed_at = float("inf")
    return code


def _run_program(job: dict[str, Any]) -> None:
    """Become one rank, as if torchrun had started the interpreter on the program; or, in a world of
    0, a plain process."""
    os.setsid()
    os.close(_ANSWERS)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the program's own from here on
    _write_into_logs(job)
    os.environ.clear()
    os.environ.update(job["env"])
    if job["world"]:
        os.environ.update(_of_torchrun(str(job["rank"]), str(job["world"])), **job["store"])
    _relative_paths_from(job["cwd"])
    os.chdir(job["cwd"])
    import multiprocessing.process
    import tempfile

    from fsdp_migrate.verify.inject import boot

    tempfile.tempdir = None  # TMPDIR is another one now
    # Where processes that the program starts look for its script.
    multiprocessing.process.ORIGINAL_DIR = job["cwd"]  # type: ignore[attr-defined]
    boot.start(forked=True)
    target = job["target"]
    if target[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = target[1:]
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
    else:
        _run_script(target)


def _write_into_logs(job: dict[str, Any]) -> None:
    """What a rank prints goes into files of its own; that of a plain process into the launcher's,
    the one after the other."""
    folder, names = job["logs"], ["launcher.log"]
    if job["world"]:
        folder, names = os.path.join(folder, str(job["rank"])), ["stdout.log", "stderr.log"]
        os.makedirs(folder, exist_ok=True)
    files = [
        os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        for name in names
    ]
    os.dup2(files[0], 1)
    os.dup2(files[-1], 2)


def _of_torchrun(rank: str, world: str) -> dict[str, str]:
    """The variables that torchrun sets on a single machine."""
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


def _exit_code(program: Callable[[], None]) -> int:
    """Run ``program`` and answer its exit code as the interpreter would."""
    try:
        program()
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _end(code: int) -> None:
    """End this process as the interpreter would, but for taking torch apart, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _relative_paths_from(folder: str) -> None:
    """Let relative entries of PYTHONPATH start in ``folder``, as they do where Python is started in
    it; this process was started elsewhere."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    relative = {os.path.abspath(each): each for each in entries if each and not os.path.isabs(each)}
    sys.path[:] = [
        os.path.join(folder, relative[path]) if path in relative else path for path in sys.path
    ]


def _run_script(target: list[str]) -> None:
    """Run a script in a ``__main__`` of its own, which lives on while the interpreter shuts down
    (``runpy.run_path`` would take it away before)."""
    path = target[0]
    from fsdp_migrate.verify.inject import compiling

    with open(path, "rb") as file:
        code = compiling.compiled(file.read(), path)
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=path, __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = program
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.argv = target
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
