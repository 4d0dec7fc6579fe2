"""Start a training program in its own copy of the tree, watch it, and say how it ended."""
