"""Idempotent requests: a key and a fingerprint for each, and a ledger of their answers."""

from outboxkit.idempotency.answer import Fresh, InProgress, Mismatch, Outcome, Replay, Response
from outboxkit.idempotency.fingerprint import fingerprint
from outboxkit.idempotency.ledger import DEFAULT_RETENTION, begin, complete, release
from outboxkit.idempotency.request import parse_key
from outboxkit.idempotency.steps import Steps

__all__ = [
    "DEFAULT_RETENTION",
    "Fresh",
    "InProgress",
    "Mismatch",
    "Outcome",
    "Replay",
    "Response",
    "Steps",
    "begin",
    "complete",
    "fingerprint",
    "parse_key",
    "release",
]
