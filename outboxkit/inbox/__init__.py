"""The inbox: handlers with durable names, and the rule that each handles a message once."""

from outboxkit.inbox.handlers import Handler, handler_of, handlers_in, inbox_handler
from outboxkit.inbox.run_batch import BatchEntryFailed, Entry, run_batch
from outboxkit.inbox.run_once import Outcome, run_once
from outboxkit.window import is_stale

__all__ = [
    "BatchEntryFailed",
    "Entry",
    "Handler",
    "Outcome",
    "handler_of",
    "handlers_in",
    "inbox_handler",
    "is_stale",
    "run_batch",
    "run_once",
]
