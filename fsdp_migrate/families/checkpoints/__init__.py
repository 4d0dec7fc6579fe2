"""State dicts of models and optimizers: which they are, who asks for them, how long they live."""
