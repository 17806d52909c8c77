"""What integration tests share: a process that servers of the idempotent shop are forked from."""

from collections.abc import Iterator

import pytest

from tests.integration.idempotent_server import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()
