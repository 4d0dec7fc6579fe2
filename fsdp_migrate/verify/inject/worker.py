"""Run a script, or with ``-m`` a module, under the recorder, without relying on ``PYTHONPATH``.

The way round when the injected ``sitecustomize`` was not imported. It reaches this process only:
children that the script starts itself are not recorded.
"""

import os
import runpy
import sys


def main() -> None:
    """``worker.py [-m] TARGET ARGUMENT...``"""
    sys.path.pop(0)  # this file's own folder, which is not the program's business
    root = os.path.dirname(os.path.abspath(__file__))
    for _ in range(3):
        root = os.path.dirname(root)
    sys.path.append(root)
    from fsdp_migrate.verify.inject import boot

    sys.path.remove(root)
    boot.start()
    arguments = sys.argv[1:]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
