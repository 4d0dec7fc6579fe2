"""Which files are looked at, and how closely."""
