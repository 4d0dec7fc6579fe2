"""Rewrite, train, mend what differs, until it is the same training: the loop of ``migrate``."""
