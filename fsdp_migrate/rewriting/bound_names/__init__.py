"""Which reads of names may find nothing bound, in the order in which a file runs.

A forward analysis over a whole module: the state (``state``) is what is surely bound, and branches
are joined by intersection. A function may run where its name is first read, or the name of what
holds it (``TABLE = {"a": build}``); where a decorator, a base class or another module that is
imported below it may call it; and when the module has been loaded. At each of these events all that
it needs from outside, and what it calls needs (``function_needs``), is looked up in the state
(``reads``). ``walk`` goes through the statements.

Only the finished file is read, and no code is shared with the placing of imports, which is what
this analysis checks.
"""
