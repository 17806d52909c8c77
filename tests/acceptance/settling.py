"""A way to stand between a relay's publish and its settle: the database lets deletes from the outbox wait."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from tests.acceptance.deployment import Deployment
from tests.acceptance.worker_process import WorkerProcess

SETTLE = 4712
"""While a test holds this advisory lock, deletes from the outbox wait in a trigger."""


@contextmanager
def settling_waits(deployment: Deployment) -> Iterator[Connection]:
    """Deletes from the outbox wait until the end of the block; then those of dead connections are rolled back.

    They wait for the session of this connection.
    """
    let_settling_wait(deployment)
    with deployment.lock_held(SETTLE) as connection:
        yield connection
    with deployment.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER wait_to_settle ON outboxkit_outbox"))


def kill_settling(deployment: Deployment, relay: WorkerProcess) -> None:
    """Kill a relay whose DELETE waits, and end its session: as if neither that nor the COMMIT behind it had arrived.

    Both are sent at once. The server alone would go on with them, as the broker has confirmed the messages.
    """
    relay.kill()
    with deployment.engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'outboxkit %' AND wait_event = 'advisory'"
            )
        )


def let_settling_wait(deployment: Deployment) -> None:
    """Have deletes from the outbox wait while somebody holds the lock."""
    with deployment.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION wait_to_settle() RETURNS trigger LANGUAGE plpgsql AS "
                f"'BEGIN PERFORM pg_advisory_xact_lock_shared({SETTLE}); RETURN NULL; END'"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER wait_to_settle BEFORE DELETE ON outboxkit_outbox "
                "FOR EACH STATEMENT EXECUTE FUNCTION wait_to_settle()"
            )
        )
