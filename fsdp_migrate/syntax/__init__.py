"""One file's source: its text, its cells, its scopes, our comments in it."""
