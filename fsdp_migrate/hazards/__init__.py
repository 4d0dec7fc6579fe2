"""What is quietly wrong in code that uses FSDP2 already: what the rules of it have in common."""
