"""The compiled kernels of csrc/activations.hpp, with the signatures of reference.py."""

from htaf.core.kernels.native import HTAF, smooth, supports

__all__ = ["backward", "backward_all", "forward", "supports"]

forward, backward, backward_all = smooth(HTAF)
