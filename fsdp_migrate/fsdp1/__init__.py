"""What FSDP1 is: its names, and where code refers to them."""
