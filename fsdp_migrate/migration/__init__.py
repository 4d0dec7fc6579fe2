"""A run over sources: decide every site, edit, check."""
