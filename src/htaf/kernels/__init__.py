"""One folder an operator. `reference.py` is the formula in plain PyTorch; every faster kernel is tested against it."""
