"""The compiled kernels of csrc/bit_counts.hpp, with the signatures of reference.py."""

from htaf.core.kernels.native import count_common as common
from htaf.core.kernels.native import transpose

__all__ = ["common", "transpose"]
