"""A ruler: that a change of the code changes not one byte of what the tool writes or reports.

``python -m tests.ruler record DIR`` runs the tool over every rule example, every fixture, every
pinned package and a number of odd inputs, for two releases of torch, and stores each file that it
writes and each word that it says. ``python -m tests.ruler compare DIR`` runs again and prints what
is different now. ``inputs.py`` and ``odd.py`` say what the tool runs over, ``running.py`` which
commands run and what is kept of them, ``volatile.py`` what two runs may differ in, ``package.py``
is all that the ruler knows of the package, and ``record.py`` stores and compares.

A record holds outputs made of other people's packages: it must never be committed.
"""
