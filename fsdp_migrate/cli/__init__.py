"""Words in, exit code out: the commands, their options, the screen, the configuration."""
