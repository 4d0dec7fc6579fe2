"""Edits that keep layout, the check of the result, and writing it.

LibCST and whitespace are known only here. ``apply`` makes a file's edits: ``abridged`` leaves out
what does not change, ``locate`` finds the LibCST node for an ``ast`` node, ``template`` turns new
code into nodes, ``imports`` adds and drops imports, ``layout`` breaks lines that became too long,
and ``transformer`` does it all in one pass. ``check`` looks at the result, ``write`` writes it.
"""
