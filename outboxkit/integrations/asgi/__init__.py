"""Requests in steps, in any ASGI framework: a lease on the key, and results of finished steps that a retry reuses."""

from outboxkit.integrations.asgi.current import step, steps
from outboxkit.integrations.asgi.middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "step", "steps"]
