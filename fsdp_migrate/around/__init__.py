"""Code that names nothing of FSDP1, and means something else around a migrated model."""
