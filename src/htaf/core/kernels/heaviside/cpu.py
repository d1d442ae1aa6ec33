"""The compiled kernels of csrc/kernels.cpp, with the signatures of reference.py."""

from htaf.core.kernels.native import heaviside as forward
from htaf.core.kernels.native import pack, supports

__all__ = ["forward", "pack", "supports"]
