"""Transactional outbox and inbox for SQLAlchemy and RabbitMQ.

`outbox.add(session, event)` puts a message beside the business rows, in one transaction; `outboxkit relay` publishes
it; `@inbox_handler` and `outboxkit consume` run its handlers, each effect once.
"""

import sys

from outboxkit import ids, inbox, outbox
from outboxkit.errors import (
    BrokerError,
    BrokerUnavailable,
    CodecError,
    ConfigurationError,
    DecodeError,
    EncodeError,
    InProgressElsewhere,
    LeaseLost,
    OutboxkitError,
    Reject,
    Retry,
    SchemaError,
    TransactionRequired,
)
from outboxkit.events import event
from outboxkit.inbox import Outcome, inbox_handler
from outboxkit.message import Message
from outboxkit.retry import Retries
from outboxkit.tables import metadata

__version__ = "0.1.0"

if "alembic" in sys.modules:
    from outboxkit import autogenerate

    autogenerate.register()

__all__ = [
    "BrokerError",
    "BrokerUnavailable",
    "CodecError",
    "ConfigurationError",
    "DecodeError",
    "EncodeError",
    "InProgressElsewhere",
    "LeaseLost",
    "Message",
    "OutboxkitError",
    "Outcome",
    "Reject",
    "Retries",
    "Retry",
    "SchemaError",
    "TransactionRequired",
    "event",
    "ids",
    "inbox",
    "inbox_handler",
    "metadata",
    "outbox",
]
