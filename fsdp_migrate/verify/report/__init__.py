"""The answer of a verification, and its forms."""
