"""Take a PyTorch code base from FSDP1 to FSDP2, and prove that it still trains the same."""

__version__ = "0.1.0"
HOME = "https://github.com/OWNER/fsdp-migrate"  # OWNER: the account that hosts it
