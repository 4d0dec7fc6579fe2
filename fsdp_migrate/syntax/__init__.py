"""One file's source: its text, its cells, its scopes, our comments in it.

``source``: bytes and the tree; ``trees``: walking it. ``scopes``, ``name_table`` and
``name_table_builder``: what binds each name. ``notebook``, ``magics``, ``notebook_sources`` and
``json_text``: notebooks as sources. ``type_expressions`` and ``string_annotations``: types.
``suppressions`` and ``guards``: what earlier runs and users wrote for us.
"""
