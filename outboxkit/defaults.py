"""Default values: settings, parameters and policies that mean the same thing take them from here. Pure."""

from datetime import timedelta

BATCH_SIZE = 2000
"""Rows that a relay claims at once, at most."""

PUBLISH_TIMEOUT = timedelta(seconds=10)
"""The time that a batch waits for its confirms, and `--drain` for a server that is away."""

POLL_INTERVAL = timedelta(milliseconds=250)
"""The time that an idle relay waits if no commit can wake it."""

CONCURRENCY = 8
"""Transactions of a queue's handlers that run at once, or HTTP requests that are open at once."""

CONSUME_BATCH_SIZE = 200
"""Deliveries that share a transaction, at most."""

PREFETCH = 64
"""Deliveries that the broker pushes ahead, at least."""

RETRY_DELAYS = (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))
"""Delays of a failed delivery: the first after its first failure, the last from then on."""

ATTEMPTS = 10
"""Failures after which a message is a dead letter."""

INBOX_RETENTION = timedelta(days=14)
"""The time for which the inbox remembers a message, which has to exceed the time that retries take."""

REQUEST_RETENTION = timedelta(hours=24)
"""The time for which the answer to a request with an idempotency key is remembered."""

LEASE = timedelta(minutes=1)
"""The time after which another run takes over a request in steps, or an effect, whose run has not gone on."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Bytes of a delivery's payload, at most: four times the largest one that `outbox.add` takes by default."""

REMIND_SECONDS = 60.0
"""Seconds until trouble that lasts is logged again: the first error of an outage is often not its cause."""

EMBEDDED_FILE = "outboxkit.db"
"""The SQLite file of `outboxkit run` without settings, in the current directory."""

BROKER_URL = "amqp://guest:guest@localhost:5672/"
"""RabbitMQ as it is installed, on this machine."""
