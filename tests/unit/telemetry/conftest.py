"""Metrics that are collected while a test runs."""

from collections.abc import Iterator

import pytest

from tests.support.measured import Measured, measuring


@pytest.fixture
def measured() -> Iterator[Measured]:
    with measuring() as found:
        yield found
