"""A PostgreSQL primary with a synchronous standby, behind one address that follows the primary."""

from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.servers.postgresql import PrivatePostgresql
from tests.servers.server import ServersUnavailable
from tests.servers.waiting import wait_until
from tests.support.pages import libpq
from tests.support.tcp_proxy import TcpProxy

SECONDS = 60
IS_SYNCHRONOUS = "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
IS_STANDBY = "SELECT NOT pg_is_in_recovery()"


class Replicated:
    """Commits wait for the standby. If the primary is lost, the standby has all that was committed."""

    controllable = True

    def __init__(self, programs: Path) -> None:
        self._primary = PrivatePostgresql(programs)
        self._standby: PrivatePostgresql | None = None
        own = make_url(self._primary.url)
        self._front = TcpProxy("127.0.0.1", own.port or 0)
        self.url = own.set(port=self._front.port).render_as_string(hide_password=False)

    def start(self) -> None:
        """Start the primary, and the first time its standby."""
        self._primary.start()
        if self._standby is None:
            self._add_standby()

    def stop(self) -> None:
        """PostgreSQL's fast shutdown of the primary."""
        self._primary.stop()

    def kill(self) -> None:
        """PostgreSQL's immediate shutdown of the primary."""
        self._primary.kill()

    def fail_over(self, *, fenced: bool) -> PrivatePostgresql:
        """Promote the standby, which gets one of its own. Returns the old primary, which has ended if it is fenced.

        One that is not fenced goes on with the sessions that it has, and its commits wait for a standby in vain.
        """
        assert self._standby is not None, "it has not been started"
        old = self._primary
        if fenced:
            old.close()
        self._primary, self._standby = self._standby, None
        self._execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()", "SELECT pg_promote()")
        self._wait_for(IS_STANDBY)
        self._front.lead_to(make_url(self._primary.url).port or 0)
        self._add_standby()
        return old

    def close(self) -> None:
        """Kill both and remove what is theirs."""
        self._front.close()
        for each in filter(None, (self._standby, self._primary)):
            each.close()

    def _add_standby(self) -> None:
        self._standby = self._primary.standby()
        self._execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'", "SELECT pg_reload_conf()")
        self._wait_for(IS_SYNCHRONOUS)

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(libpq(self._primary.url), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _wait_for(self, question: str) -> None:
        with psycopg.connect(libpq(self._primary.url), autocommit=True) as connection:

            def is_so() -> bool:
                return connection.execute(question.encode()).fetchone() == (True,)

            if not wait_until(is_so, lambda: True, SECONDS):
                raise ServersUnavailable(f"not within {SECONDS} s: {question}")
