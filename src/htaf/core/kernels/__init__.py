"""One folder an operator, all with the same functions: `reference.py` is the formula in plain PyTorch, `cpu.py` calls
the C++ of csrc/, `triton.py` runs on CUDA. `operators.py` registers them as torch operators and chooses among them.

A smooth activation has `forward(x, *parameters, bipolar)`, `backward(grad, x, *parameters, bipolar)` and, for tensor
parameters, `backward_all(...)`, which returns their gradients too.
"""
