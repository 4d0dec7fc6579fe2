"""Tree edits that keep layout: the only package that knows LibCST and whitespace.

``locate`` finds the LibCST node for an ``ast`` node, ``template`` turns new code into nodes,
``layout`` breaks lines that became too long, ``imports`` adds and drops imports, ``apply`` runs
everything in one pass over the parts of the tree that change.
"""
