"""What an expression may be, traced to where it was made.

:mod:`~fsdp_migrate.analysis.tracing.tracer` is where to ask. Its parts: ``names``, ``attributes``,
``containers``, ``calls`` and ``registries`` follow one kind of expression each; ``call_graph``
knows callers, ``class_hierarchy`` bases and subclasses; ``answers`` keeps what was found.
"""
