"""The examination: every check once, one after the other on each side, each within a bound of time."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlalchemy import Connection

from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import NO_RIGHT, sqlstate_of
from outboxkit.operators.doctor import messages, retention, rights, server, sessions, shards
from outboxkit.operators.doctor.installation import Check, Database, Installation
from outboxkit.operators.findings import Diagnosis, Severity, finding
from outboxkit.runtime import urls
from outboxkit.statements.dialects import is_server

Side = Literal["database", "broker"]
SIDES: tuple[Side, ...] = ("database", "broker")

TABLES = Check("tables", server.check_tables, needs_tables=False, needs_server=False)
OF_MESSAGES: tuple[Check, ...] = (
    Check("pauses", messages.check_pauses, needs_server=False),
    Check("relays", messages.check_relays, needs_server=False),
    Check("workers", messages.check_workers, needs_server=False),
    Check("shards", shards.check_shards, needs_server=False),
    Check("locks", sessions.check_locks),
    Check("handlers", sessions.check_handlers),
    Check("transactions", sessions.check_transactions, needs_tables=False),
    Check("failing types", messages.check_failing, needs_server=False),
    Check("due times", messages.check_due, needs_server=False),
    Check("retries", messages.check_retried, needs_server=False),
    Check("dead letters", messages.check_dead_letters, needs_server=False),
    Check("effects", messages.check_effects, needs_server=False),
    Check("handlers' names", retention.check_names, needs_server=False),
)
"""The checks that explain why messages wait; `outboxkit status` runs them, too. The first explain most others."""
DATABASE: tuple[Check, ...] = (
    *OF_MESSAGES,
    Check("consumers", retention.check_consumers),
    Check("retention", retention.check_retention, needs_server=False),
    Check("pruning", retention.check_pruning, needs_server=False),
    Check("rights", rights.check_rights),
    Check("writes", server.check_writes, needs_tables=False),
    Check("durability", server.check_durability, needs_tables=False),
    Check("clock", server.check_clock, needs_tables=False),
    Check("vacuum", server.check_vacuum),
    Check("slots", sessions.check_slots, needs_tables=False),
)
"""The checks of the database's side, in the order of the report."""


@dataclass(frozen=True)
class Examined:
    """The result of an examination.

    Attributes:
        findings: the worst ones first.
        passed: checks that found nothing wrong, such as `database: durability`.
        left_out: checks that were not run, because an earlier finding makes them pointless, or that do not apply.
    """

    database: str
    broker: str
    findings: tuple[Diagnosis, ...] = ()
    passed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    problems: int = 0
    warnings: int = 0


@dataclass
class SideReport:
    """The result of one side, as it grows."""

    side: Side
    findings: list[Diagnosis] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    denied: dict[str, str] = field(default_factory=dict)
    """The checks for which the role lacks a right, and the error of each."""

    def add(self, check: str, findings: Sequence[Diagnosis]) -> None:
        """Add what a check has found."""
        self.findings += [replace(each, side=self.side, check=check) for each in findings]
        if any(each.code == "management-unread" for each in findings):
            self.leave_out(check)
        elif all(each.severity is Severity.NOTE for each in findings):
            self.passed.append(f"{self.side}: {check}")

    def leave_out(self, check: str) -> None:
        """Note a check that was not run."""
        self.left_out.append(f"{self.side}: {check}")


async def examine(installation: Installation, sides: Sequence[Side] = SIDES) -> Examined:
    """Run the checks of these sides, both at once. It never fails: what could not be checked is a finding."""
    runs = {"database": examine_database, "broker": _examine_broker}
    reports = await asyncio.gather(*(runs[side](installation) for side in sides))
    findings = worst_first(each for report in reports for each in report.findings)
    return Examined(
        database=urls.shown(installation.settings.database_url.get_secret_value()),
        broker=urls.shown(installation.settings.broker_url.get_secret_value()),
        findings=findings,
        passed=tuple(name for report in reports for name in report.passed),
        left_out=tuple(name for report in reports for name in report.left_out),
        problems=sum(each.severity is Severity.PROBLEM for each in findings),
        warnings=sum(each.severity is Severity.WARNING for each in findings),
    )


def worst_first(findings: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """The findings by severity."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda each: order.index(each.severity)))


async def examine_database(installation: Installation, checks: Sequence[Check] = DATABASE) -> SideReport:
    """The report of the database's side, with these checks."""
    report = SideReport("database")
    away = await server.why_away(installation)
    report.add("connection", [] if away is None else [away])
    has_tables = away is None and await _run(TABLES, installation, report)
    has_tables = has_tables and not {each.code for each in report.findings} & {"tables-missing", "tables-behind"}
    has_server = installation.engine is not None and is_server(installation.engine.dialect.name)
    if away is None and has_server and checks is DATABASE:
        report.add("pooler", await server.check_pooler(installation))
    for check in checks:
        if away is not None or (check.needs_tables and not has_tables) or (check.needs_server and not has_server):
            report.leave_out(check.name)
        else:
            await _run(check, installation, report)
    if report.denied:
        reasons = ", ".join(dict.fromkeys(report.denied.values()))
        report.add("rights to read", [finding("not-checked", check=", ".join(report.denied), reason=reasons)])
    return report


async def _run(check: Check, installation: Installation, report: SideReport) -> bool:
    """Run one check within its time, and add what it finds; returns whether it was done."""
    findings, is_done, limit = list[Diagnosis](), False, installation.limits.check_seconds

    def find(connection: Connection) -> None:
        findings.extend(check.find(Database(connection, installation)))

    try:
        async with asyncio.timeout(limit), installation.opened() as connection:
            await connection.run_sync(find)
        is_done = True
    except TimeoutError:
        findings.append(finding("not-checked", check=check.name, reason=f"it had not ended after {limit:g} s"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
        is_done = sqlstate_of(error) is not None  # the server has answered
        if sqlstate_of(error) == NO_RIGHT:
            report.denied[check.name] = first_line(error)
            return is_done
        findings.append(finding("not-checked", check=check.name, reason=first_line(error)))
    report.add(check.name, findings)
    return is_done


async def _examine_broker(installation: Installation) -> SideReport:
    from outboxkit.operators.doctor import broker  # noqa: PLC0415 - `status` and the console do without RabbitMQ's client

    report = SideReport("broker")
    limit = installation.limits.check_seconds
    try:
        async with asyncio.timeout(2 * limit):
            snapshot = await broker.read_snapshot(installation)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        late = f"it had not ended after {2 * limit:g} s"
        reason = late if isinstance(error, TimeoutError) else first_line(error)
        report.add("connection", [finding("not-checked", check="connection", reason=reason)])
        snapshot = None
    for check in broker.CHECKS:
        if snapshot is None or not check.is_known(snapshot):
            report.leave_out(check.name)
        else:
            report.add(check.name, list(check.find(snapshot)))
    return report
