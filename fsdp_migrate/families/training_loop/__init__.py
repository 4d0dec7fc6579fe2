"""What happens in a training loop: optimizers, reductions, hooks."""
