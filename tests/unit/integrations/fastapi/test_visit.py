"""A request in its route."""

import pytest
from starlette.requests import Request

from outboxkit.errors import ConfigurationError
from outboxkit.integrations.fastapi.dependency import open_visit, visit_of


def test_a_visit_is_found_by_its_request():
    request = Request({"type": "http", "headers": []})
    visit = open_visit(request, "/orders")
    assert visit_of(request) is visit
    assert visit.work is None


def test_without_one_the_error_says_what_to_change():
    request = Request({"type": "http", "method": "POST", "path": "/orders", "headers": [(b"host", b"shop")]})
    with pytest.raises(ConfigurationError, match=r"POST /orders depends on Idempotent.*route_class=IdempotentRoute"):
        visit_of(request)
