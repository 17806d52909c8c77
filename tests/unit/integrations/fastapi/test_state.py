"""The state of a request."""

import pytest
from starlette.requests import Request

from outboxkit.errors import ConfigurationError
from outboxkit.integrations.fastapi.dependency import open_state, state_of


def test_the_state_is_found_by_its_request():
    request = Request({"type": "http", "headers": []})
    state = open_state(request, "/orders")
    assert state_of(request) is state
    assert state.work is None


def test_without_one_the_error_says_what_to_change():
    request = Request({"type": "http", "method": "POST", "path": "/orders", "headers": [(b"host", b"shop")]})
    with pytest.raises(ConfigurationError, match=r"POST /orders depends on Idempotent.*route_class=IdempotentRoute"):
        state_of(request)
