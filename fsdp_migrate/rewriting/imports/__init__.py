"""Imports: added where the file keeps them, dropped when an edit took away their last use."""
