"""Train a program before and after its migration and give one verdict.

Importing this package costs nothing: torch is imported only in the child processes that train.
Start with :class:`fsdp_migrate.verify.plan.Plan` and :func:`fsdp_migrate.verify.run.verify`.
"""
