"""The compiled kernels of csrc/bit_counts.hpp and csrc/nearest.hpp, with the signatures of reference.py."""

from htaf.core.kernels.native import count_common as common
from htaf.core.kernels.native import nearest, transpose

__all__ = ["common", "nearest", "transpose"]
