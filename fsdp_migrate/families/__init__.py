"""What the rules of a family share: how constructs of one kind are read and written."""
