"""The error of packed models."""

from htaf._ground.errors import HtafError


class PackedError(HtafError):
    """A model that cannot be packed, a file that is no packed model, or inputs that it does not take."""
