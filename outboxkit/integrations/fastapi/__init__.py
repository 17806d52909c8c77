"""Idempotent endpoints of FastAPI: key, business rows and answer commit in the endpoint's own transaction."""

from outboxkit.extras import needs_extra

with needs_extra(__name__):
    from outboxkit.integrations.fastapi.answers import add_problem_handlers
    from outboxkit.integrations.fastapi.dependency import Idempotent
    from outboxkit.integrations.fastapi.route import IdempotentRoute

__all__ = ["Idempotent", "IdempotentRoute", "add_problem_handlers"]
