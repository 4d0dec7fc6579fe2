"""Classes derived from FSDP's."""
