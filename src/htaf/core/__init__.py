"""The activations, their gradients and kernels: what a layer with 0/1 outputs is made of."""
