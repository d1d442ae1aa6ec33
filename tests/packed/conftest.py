from __future__ import annotations

from collections.abc import Iterator

import pytest
from packed_nets import one_export


@pytest.fixture
def exported_once() -> Iterator[None]:
    """`pack` and `verify` of one model share its export, which takes most of the time of a test."""
    with one_export():
        yield
