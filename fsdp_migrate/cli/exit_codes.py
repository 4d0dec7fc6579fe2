"""The exit codes, which are the same for every command."""

GOOD = 0  # nothing to do, or all good
SEE = 1  # something to see: files would change, sites are left, the trainings differ
BAD = 2  # bad input, or a failure of ours
