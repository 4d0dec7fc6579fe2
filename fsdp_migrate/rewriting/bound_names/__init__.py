"""Which reads of names may find nothing bound, in the order in which a file runs.

A forward analysis over a whole module: the state is what is surely bound, branches joined by
intersection. A function runs at the earliest where its name is first read, or what holds it
(``TABLE = {"a": build}``) is; where a decorator, a base class or another module that is imported
below it may call it; and after the module has been loaded. At each of these events everything
that it needs from outside, with what it calls in turn, is looked up in the state.

This reads the finished file and nothing else: it shares no code with the placing of imports, which
it is there to doubt.
"""
