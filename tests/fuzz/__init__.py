"""Programs with accidents: tokens lost, doubled and spliced, in every fixture and example.

Whatever comes out, the tool answers: no traceback, no defect that only its own check finds, code
that compiles, a second run with nothing to do, and no name that nothing binds or nothing uses.
"""
