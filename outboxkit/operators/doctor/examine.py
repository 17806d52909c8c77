"""The examination: every check once, one after the other on each side, each within a bound of time."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import LOCKED, NO_RIGHT, sqlstate_of
from outboxkit.operators.doctor import (
    activity,
    broker,
    durability,
    forgetting,
    handlers,
    reach,
    rights,
    sessions,
    storage,
    waiting,
)
from outboxkit.operators.doctor.diagnosis import note, warning
from outboxkit.operators.doctor.installation import Check, Installation
from outboxkit.operators.findings import Diagnosis, Severity
from outboxkit.runtime import urls

Side = Literal["database", "broker"]
SIDES: tuple[Side, ...] = ("database", "broker")

DATABASE: tuple[Check, ...] = (
    Check("pauses", waiting.check_pauses, needs_tables=True),
    Check("relays", waiting.check_relays, needs_tables=True),
    Check("locks", activity.check_locks, needs_tables=True, needs_server=True),
    Check("transactions", activity.check_transactions, needs_server=True),
    Check("failing types", waiting.check_failing, needs_tables=True),
    Check("dead letters", waiting.check_dead_letters, needs_tables=True),
    Check("effects", waiting.check_effects, needs_tables=True),
    Check("handlers' names", handlers.check_names, needs_tables=True),
    Check("consumers", handlers.check_consumers, needs_tables=True, needs_server=True),
    Check("windows", handlers.check_windows, needs_tables=True),
    Check("retention", forgetting.check_retention, needs_database=False),
    Check("pruning", forgetting.check_pruning, needs_tables=True),
    Check("partitions", forgetting.check_partitions, needs_tables=True, needs_server=True),
    Check("rights", rights.check_rights, needs_tables=True, needs_server=True),
    Check("version", durability.check_version, needs_server=True),
    Check("durability", durability.check_durability, needs_server=True),
    Check("standbys", durability.check_standbys, needs_server=True),
    Check("isolation", sessions.check_isolation, needs_server=True),
    Check("pooler", sessions.check_pooler, needs_server=True),
    Check("clock", sessions.check_clock, needs_server=True),
    Check("encryption", sessions.check_encryption, needs_server=True),
    Check("vacuum", storage.check_vacuum, needs_tables=True, needs_server=True),
    Check("indexes", storage.check_indexes, needs_tables=True, needs_server=True),
    Check("numbers", storage.check_numbers, needs_tables=True, needs_server=True),
    Check("slots", activity.check_slots, needs_server=True),
)
"""The checks of the database's side, in the order of the report. The first findings explain most of the others."""
BROKER: tuple[Check, ...] = broker.CHECKS
"""The checks of the broker's side."""


@dataclass(frozen=True)
class Examined:
    """The result of an examination.

    Attributes:
        database: the database, without user and password.
        broker: the broker, likewise.
        findings: the worst ones first.
        passed: checks that found nothing wrong, such as `database: durability`.
        left_out: checks that were not run, because an earlier finding makes them pointless.
        problems: the number of findings that are problems.
        warnings: the number of those that are warnings.
    """

    database: str
    broker: str
    findings: tuple[Diagnosis, ...] = ()
    passed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    problems: int = 0
    warnings: int = 0


@dataclass
class _Side:
    """The result of one side, as it grows."""

    findings: list[Diagnosis] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


async def examine(installation: Installation, sides: Sequence[Side] = SIDES) -> Examined:
    """Run the checks of these sides, both at once. It never fails: what could not be checked is a finding."""
    runs = {"database": _examine_database, "broker": _examine_broker}
    results = await asyncio.gather(*(runs[side](installation) for side in sides))
    order = list(Severity)
    findings = sorted((each for side in results for each in side.findings), key=lambda each: order.index(each.severity))
    return Examined(
        database=urls.shown(installation.settings.database_url.get_secret_value()),
        broker=urls.shown(installation.settings.broker_url.get_secret_value()),
        findings=tuple(findings),
        passed=tuple(name for side in results for name in side.passed),
        left_out=tuple(name for side in results for name in side.left_out),
        problems=sum(each.severity is Severity.PROBLEM for each in findings),
        warnings=sum(each.severity is Severity.WARNING for each in findings),
    )


async def _examine_database(installation: Installation) -> _Side:
    result, side = _Side(), "database"
    reached = await _run(Check("connection", reach.check_connection), installation, result, side)
    tables = reached and await _run(Check("tables", reach.check_tables), installation, result, side)
    for check in DATABASE:
        if check.needs_server and not installation.has_server:
            continue
        if (check.needs_database and not reached) or (check.needs_tables and not tables):
            result.left_out.append(f"{side}: {check.name}")
        else:
            await _run(check, installation, result, side)
    if reached and not installation.has_server:
        result.findings.append(replace(_of_a_file(), side=side, check="connection"))
    return result


def _of_a_file() -> Diagnosis:
    names = ", ".join(check.name for check in DATABASE if check.needs_server)
    return note(
        "file-database",
        f"The database is an SQLite file. These checks are about a server, and do not apply: {names}.",
        why="SQLite is for a demo, for tests and for one process that writes. PostgreSQL carries the promises.",
    )


async def _examine_broker(installation: Installation) -> _Side:
    result = _Side()
    for check in BROKER:
        if check.applies(installation):
            await _run(check, installation, result, "broker")
        else:
            result.left_out.append(f"broker: {check.name}")
    return result


async def _run(check: Check, installation: Installation, result: _Side, side: str) -> bool:
    """Run one check within its time, and add what it finds; returns whether it was done and found no problem."""
    findings, is_done = list[Diagnosis](), False
    limit = installation.thresholds.check_seconds
    try:
        async with asyncio.timeout(limit), aclosing(check.find(installation)) as each:
            async for finding in each:
                findings.append(finding)
        is_done = True
    except TimeoutError:
        findings.append(
            _unchecked(check, f"it had not ended after {limit:g} s", "The server is busy, or silent: look at it.")
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
        is_done = sqlstate_of(error) is not None  # the server has answered
        findings.append(_unchecked(check, first_line(error), _cure(error)))
    result.findings += [replace(finding, side=side, check=check.name) for finding in findings]
    if all(finding.severity is Severity.NOTE for finding in findings):
        result.passed.append(f"{side}: {check.name}")
    return is_done and not any(finding.severity is Severity.PROBLEM for finding in findings)


def _cure(error: BaseException) -> str:
    state = sqlstate_of(error)
    if state == NO_RIGHT:
        return (
            "Run doctor as a role that may read outboxkit's tables, such as the operator's of "
            "docs/how-to/grant-least-privileges.md."
        )
    if state in LOCKED:
        return "Another session has locked the table. The finding `table-locked` names it after ten seconds: end that."
    return "Mend what the other findings name, and run doctor again."


def _unchecked(check: Check, reason: str, cure: str) -> Diagnosis:
    return warning(
        "not-checked",
        f"The check of {check.name} could not be done: {reason}.",
        why="Nobody knows whether this part of the installation is safe.",
        cure=cure,
    )
