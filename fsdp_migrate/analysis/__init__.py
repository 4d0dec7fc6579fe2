"""Where values go, over a whole project, without running anything.

``module``, ``module_lookup``, ``name_resolution``, ``project``: the files, which file a dotted name
means, and what names stand for through imports. ``import_roots``, ``import_steps``,
``installed_packages``: the directories that dotted names start from. ``load_order``: what has run
while a module loads. ``flow``, ``reaching_definitions``, ``path_uses``, ``isinstance_tests``: which
definitions reach a use inside one scope, and under which tests; ``reaching_bindings``: which
bindings a name may have. ``values`` and ``tracing``: what an expression may be, across files.
``torch_versions``, ``version_apis``, ``version_tests``, ``dead_branches``: what tests of torch's
version say, and the code that only older releases run.
"""
