"""Take a PyTorch code base from FSDP1 to FSDP2, and prove that it still trains the same."""

__version__ = "0.1.0"
# Where the sources are public. A release fills it in (.github/workflows/release.yml): without an
# address there are no links to pages, and no project URLs.
HOME = ""
