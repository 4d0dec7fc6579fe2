"""What a run decides about each reference to FSDP1, and the data that everybody speaks of."""
