"""What the tests of the HTTP door share."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.unit.http.flask_door import Door


@pytest.fixture
def entrance(engine: Engine) -> Iterator[Door]:
    door_ = Door(engine)
    yield door_
    door_.sessions.remove()
