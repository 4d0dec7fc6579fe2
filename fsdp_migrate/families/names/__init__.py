"""Names of parameters and modules, as strings and as variables."""
