"""Whole-model transforms: find the activations of a model, replace them, exchange smooth steps for exact ones.

Every transform returns a new model and says what it did: see `conversion`.
"""

from htaf.transform.convert.finding import Site
from htaf.transform.convert.transforms import Conversion, conversion, harden, replace, sites

__all__ = ["Conversion", "Site", "conversion", "harden", "replace", "sites"]
