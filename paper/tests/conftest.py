"""A real browser, as the tests of the explorer have it."""

from visits import browser, visit

__all__ = ["browser", "visit"]
