"""The consumer's side: handlers with durable names, and the rule that each handles a message once."""

from outboxkit.inbox.age import is_stale
from outboxkit.inbox.batch import Culprit, Entry, run_batch
from outboxkit.inbox.handlers import Handler, handler_of, handlers_in, inbox_handler
from outboxkit.inbox.once import run_once
from outboxkit.inbox.outcome import Outcome

__all__ = [
    "Culprit",
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
