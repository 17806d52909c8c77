"""The inbox: handlers with durable names, and the rule that each handles a message once."""

from outboxkit.inbox.handlers import Handler, handler_of, handlers_in, inbox_handler
from outboxkit.inbox.middleware import Context, Middleware
from outboxkit.inbox.run_batch import BatchEntryFailed, Entry, run_batch
from outboxkit.inbox.run_once import Outcome, run_once
from outboxkit.inbox.wiring import Wiring, wiring_in
from outboxkit.runtime.window import is_stale

__all__ = [
    "BatchEntryFailed",
    "Context",
    "Entry",
    "Handler",
    "Middleware",
    "Outcome",
    "Wiring",
    "handler_of",
    "handlers_in",
    "inbox_handler",
    "is_stale",
    "run_batch",
    "run_once",
    "wiring_in",
]
