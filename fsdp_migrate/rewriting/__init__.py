"""Edits that keep layout, the check of the result, and writing it.

LibCST and whitespace are known only here. ``locate`` finds the LibCST node for an ``ast`` node,
``template`` turns new code into nodes, ``layout`` breaks lines that became too long, ``imports``
adds and drops imports, ``apply`` runs everything in one pass over the parts that change.
"""
