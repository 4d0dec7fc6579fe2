"""Code that handles parameters: their shapes, values, attributes, and where they are kept."""
