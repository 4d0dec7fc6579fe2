"""Runs inside the training processes and writes one JSONL file per rank.

It issues no collectives of its own, changes no number, and never raises into the program: what it
cannot record becomes an ``error`` or ``unsupported`` record, which voids a verdict of "same".
"""

SCHEMA = 7
"""Version of the record format; written into every ``meta`` record."""
