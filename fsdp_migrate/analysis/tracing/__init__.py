"""What an expression may be, traced to where it was made: see ``tracer``."""
