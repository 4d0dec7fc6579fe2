"""Rewrite, train, leave what differs, until it is the same training: the loop of ``migrate``."""
