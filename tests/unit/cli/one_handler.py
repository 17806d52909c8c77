"""A module with a handler, for commands that are given one."""

from outboxkit import inbox_handler
from tests.unit.shop import OrderConfirmed


@inbox_handler("unit.one_handler")
def handle(session: object, event: OrderConfirmed) -> None: ...
