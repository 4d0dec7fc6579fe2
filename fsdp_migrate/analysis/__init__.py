"""Where values go, over a whole project, without running anything.

``module`` and ``project``: the files and how their imports meet. ``import_roots``: the directories
that dotted names start from. ``load_order``: what runs while a module loads. ``flow``: which
definitions reach a use inside one scope; ``reaching_bindings``: which bindings a name may have.
``values``: what an expression may be, across files. ``version_tests`` and ``dead_branches``: what
tests of torch's version say, and the code that only older releases run.
"""
