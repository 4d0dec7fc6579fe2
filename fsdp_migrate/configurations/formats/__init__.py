"""Formats of configurations: where settings stand in a text, and how the text is edited there."""
