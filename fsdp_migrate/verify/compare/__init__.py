"""Judge two recordings. Knows nothing of processes or torch."""
