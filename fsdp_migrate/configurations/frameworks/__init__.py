"""What each framework's settings of FSDP1 become: one module a framework, each with ``migrate``."""
