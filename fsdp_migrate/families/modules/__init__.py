"""Code that looks at a model's modules: their classes, copies, replacements, checkpointing."""
