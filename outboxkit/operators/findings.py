"""The table of findings: what may be wrong with an installation, why it matters, and the cure. Pure.

`doctor` and `status` print findings, and each alert belongs to the findings that explain it. A check yields
`finding(code, **facts)`; all their texts and thresholds stand here. `trace` has sentences of its own, and these cures.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from string import Formatter


class Severity(StrEnum):
    """The three severities of a finding.

    A problem loses messages, or stops them, or will. A warning should be mended before it becomes one. A note is good
    to know, and nothing has to be done.
    """

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


PROBLEM, WARNING, NOTE = Severity


@dataclass(frozen=True)
class Limits:
    """The values from which something is worth a finding or an alert; tests set them lower.

    Attributes:
        waiting: how long a message may wait for its relay.
        backlog: how long it may wait until the alert fires.
        turn: how long a relay may need for a turn.
        pause: how long a pause may last until the alert fires.
        transaction: how long a transaction may stay open.
        transaction_long: from when it is a problem, and the alert fires.
        behind: transactions since the oldest one that vacuum must spare, if its age is not known.
        handler: how long a handler may run.
        handler_long: from when it is a problem, and the alert fires.
        lock: how long a session may wait for another one's lock, or lock a table.
        late: how old a message may be when it is handled.
        far: how far ahead a message may be due.
        consumer: how long ago a consumer may have been seen; it registers every hour.
        forgotten: how much longer than its retention a row may stay.
        skew: how far the clocks of this machine and the database may be apart.
        dead_rows: dead rows of a table that vacuum may leave.
        connections: the share of the server's connections that may be used.
        wal_bytes: how much write-ahead log an unused replication slot may keep.
        check_seconds: how long a check may take.
    """

    waiting: timedelta = timedelta(minutes=1)
    backlog: timedelta = timedelta(minutes=5)
    turn: timedelta = timedelta(minutes=2)
    pause: timedelta = timedelta(hours=1)
    transaction: timedelta = timedelta(minutes=5)
    transaction_long: timedelta = timedelta(hours=1)
    behind: int = 100_000
    handler: timedelta = timedelta(minutes=1)
    handler_long: timedelta = timedelta(minutes=10)
    lock: timedelta = timedelta(seconds=10)
    late: timedelta = timedelta(days=1)
    far: timedelta = timedelta(days=90)
    consumer: timedelta = timedelta(hours=2)
    forgotten: timedelta = timedelta(days=2)
    skew: timedelta = timedelta(seconds=30)
    dead_rows: int = 100_000
    connections: float = 0.9
    wal_bytes: int = 1 << 30
    check_seconds: float = 5.0


LIMITS = Limits()
ALERT_LIMITS: Mapping[str, timedelta] = {
    "OutboxkitNoProgress": LIMITS.turn,
    "OutboxkitBacklog": LIMITS.backlog,
    "OutboxkitPausedLong": LIMITS.pause,
    "OutboxkitLongTransaction": LIMITS.transaction_long,
    "OutboxkitHandlerHangs": LIMITS.handler_long,
    "OutboxkitConsumerLate": LIMITS.late,
    "OutboxkitClockSkew": LIMITS.skew,
}
"""The limit in the expression of each alert that has one. OutboxkitRetentionNotRun adds the inbox's retention."""

Fact = object
"""A value that a text names; a tuple of several is listed, and makes a command for each."""


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    """The kind of a finding: its texts, with the names of facts in braces.

    Attributes:
        severity: of most; `worse`: of a case that is worse.
        commands: lines to paste. One is left out if a fact of it is not given.
    """

    severity: Severity
    what: str
    why: str
    cure: str
    worse: Severity | None = None
    commands: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A finding with its texts filled in.

    Attributes:
        what, why, cure: sentences, without anything secret.
        rows: the `type` and the `destination` of the messages that it is about, as they are stored, if they share one.
        side: `database` or `broker`; set by the examination.
        check: the name of the check, such as `durability`; likewise.
    """

    severity: Severity
    code: str
    what: str
    why: str = ""
    cure: str = ""
    commands: tuple[str, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict, hash=False)
    side: str = ""
    check: str = ""


def finding(code: str, *, worse: bool = False, **facts: Fact) -> Diagnosis:
    """The finding of this kind about these facts; `worse` takes its other severity."""
    kind = FINDINGS[code]
    listed = {name: ", ".join(map(str, fact)) if isinstance(fact, tuple) else fact for name, fact in facts.items()}
    if isinstance(reason := listed.get("reason"), str):
        listed["reason"] = " ".join(reason.split()).rstrip(".?!")  # a server's sentence becomes a part of ours
    what, why, cure = (text.format_map(listed) for text in (kind.what, kind.why, kind.cure))
    commands = commands_of(code, **facts)
    severity = kind.worse if worse and kind.worse is not None else kind.severity
    return Diagnosis(severity, code, what, why, cure, commands)


def without_error(found: Diagnosis) -> Diagnosis:
    """The finding without the error that it quotes, for readers who may not see what is in messages."""
    head, is_quoted, _ = FINDINGS[found.code].what.partition("{error}")
    parts = Formatter().parse(head)
    pattern = "".join(re.escape(text) + ("" if name is None else ".*?") for text, name, _, _ in parts)
    if not is_quoted or (match := re.match(pattern, found.what, re.DOTALL)) is None:
        return found
    return replace(found, what=f"{match[0]}…")


def commands_of(code: str, **facts: Fact) -> tuple[str, ...]:
    """The lines to paste that cure a finding of this kind, without those whose facts are not given."""
    return tuple(line for template in FINDINGS[code].commands for line in _filled(template, facts))


def steps_of(code: str, **facts: Fact) -> tuple[str, ...]:
    """The cure of a finding of this kind: the text, if it needs no fact, and the lines to paste."""
    return (FINDINGS[code].cure, *commands_of(code, **facts))


def _filled(template: str, facts: Mapping[str, Fact]) -> Iterator[str]:
    """The lines of a command: one for each value of a fact that has several."""
    used = {name: facts.get(name) for _, name, _, _ in Formatter().parse(template) if name}
    if None in used.values():
        return
    count = max((len(fact) for fact in used.values() if isinstance(fact, tuple)), default=1)
    for index in range(count):
        yield template.format_map(
            {name: fact[index] if isinstance(fact, tuple) else fact for name, fact in used.items()}
        )


def quoted(name: object) -> str:
    """A name as SQL writes it, for commands to paste."""
    return '"' + str(name).replace('"', '""') + '"'


_LEAST = "docs/how-to/grant-least-privileges.md has the script with all grants."
_RETENTION = "docs/how-to/choose-retention.md adds up how long it should be."
_KEPT = "Nothing is lost: a relay publishes it later."
_VACUUM = (
    "PostgreSQL keeps every row that was deleted since, in each table. The tables grow, and reading them slows down."
)
_RELAY_ALERTS = ("OutboxkitBacklog", "OutboxkitNoProgress")

OF_THE_DATABASE: Mapping[str, FindingKind] = {
    "database-away": FindingKind(
        severity=PROBLEM,
        what="{database} cannot be used: {reason}.",
        why="Nothing can be added, published or handled until it can. Nothing is lost: workers that are up wait and go "
        "on.",
        cure="Start the server, or correct host, port, database, user and password in OUTBOXKIT_DATABASE_URL, or in "
        "the file of OUTBOXKIT_DATABASE_URL_FILE. If they are right, look at pg_hba.conf, at the network, and at a "
        "pooler, whose pool may be full. A process reads a changed password at its next start. SQLite: the path must "
        "lead to one of its files, and this user must be allowed to write to that and to its folder.",
        alerts=("OutboxkitDisconnected", "OutboxkitConsumerDisconnected", "OutboxkitTargetDown"),
    ),
    "connections-used-up": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="Connections to the database are used up: {used}.",
        why="Workers and applications that get none wait, and requests fail.",
        cure="End clients that nobody needs, give pools fewer connections, or put a pooler before the applications. "
        "Or raise the limit that the server names: max_connections, or the CONNECTION LIMIT of the role or database.",
        commands=(
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC;",
        ),
        alerts=("OutboxkitDisconnected", "OutboxkitConsumerDisconnected"),
    ),
    "tables-missing": FindingKind(
        severity=PROBLEM,
        what="outboxkit's tables are not {place}.",
        why="Nothing can be added, published or handled.",
        cure="If this is the right database, create them. If they are in another schema, name it in the URL:",
        commands=("{migrate}", "?options=-csearch_path%3D{schema}"),
    ),
    "tables-behind": FindingKind(
        severity=PROBLEM,
        what="The tables do not fit this release: {reason}.",
        why="Workers of this release refuse to start, and applications fail when they add a message.",
        cure="Upgrade the tables, or add that step to your Alembic history:",
        commands=("outboxkit migrate",),
    ),
    "part-missing": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="A part of the tables is missing: {parts}.",
        why="Without an index the relay slows down as the table grows. Without the trigger it polls. Without a table, "
        "column or partition, statements fail.",
        cure="Create it again. A table or a column comes back from a backup alone, if something was in it:",
        commands=("outboxkit migrate",),
    ),
    "durability-off": FindingKind(
        severity=PROBLEM,
        what="{what}.",
        why="A crash of the server or its machine loses commits that were confirmed, with their messages.",
        cure="Take the setting back, as a superuser or in your provider's settings. If it is in the URL's options or "
        "in the server's start command, take it out there:",
        commands=("{undo}",),
    ),
    "server-read-only": FindingKind(
        severity=PROBLEM,
        what="The database takes no writes: {reason}.",
        why="Relays and consumers wait as if the database were away. What a standby shows is not the newest.",
        cure="Name the primary server in the URL, or let the driver find it among several hosts. If transactions are "
        "read-only by a setting, reset it for the database or the role:",
        commands=(
            "?target_session_attrs=read-write",
            "ALTER DATABASE {database} RESET default_transaction_read_only;",
            "ALTER ROLE {role} RESET default_transaction_read_only;",
        ),
        alerts=("OutboxkitDisconnected", "OutboxkitConsumerDisconnected"),
    ),
    "clock-skew": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="The database's clock is {skew} {whose}.",
        why="Ids of messages carry the time of the machine that made them. If it is wrong, messages are stale too "
        "early, or their inbox rows are kept for too long.",
        cure="Have NTP keep both clocks, such as with chrony. This tells whether a machine's clock is kept:",
        commands=("timedatectl show --property=NTPSynchronized",),
        alerts=("OutboxkitClockSkew", "OutboxkitStale"),
    ),
    "pooler-transaction-mode": FindingKind(
        severity=PROBLEM,
        what="{what}",
        why="Settings of a relay's session reach other clients, and notifications reach nobody. The lock by which one "
        "pruner works at a time is lost or stays. Workers refuse to start.",
        cure="{cure}",
        commands=("{line}",),
    ),
    "pause-ignored": FindingKind(
        severity=PROBLEM,
        what="Of {process}, which is paused, {holding}.",
        why="Messages may leave or be handled although an operator has forbidden it.",
        cure="A busy process acknowledges once it has nothing in flight. If it does not, it hangs, may not read "
        "outboxkit_pause, or is of a release without pauses. End it: its supervisor starts it again, paused.",
        commands=("outboxkit status",),
    ),
    "paused": FindingKind(
        severity=WARNING,
        what="{pause}.",
        why="Its messages wait until the pause ends. Nothing is lost.",
        cure="If its reason is over, resume it:",
        commands=("outboxkit resume {process}",),
        alerts=("OutboxkitPausedLong",),
    ),
    "shards-moving": FindingKind(
        severity=NOTE,
        worse=WARNING,
        what="The number of shards of queue {queue} {change}: {waits}.",
        why="Keys stay in order: a message waits for the earlier ones of its key in the shards of before. None is "
        "lost.",
        cure="It ends by itself while consumers run. If it does not, a message fails or its handler hangs: read their "
        "log. Stop the processes that have the number of before. Delete no shard meanwhile. If none runs, start some.",
        commands=("{consume}",),
        alerts=("OutboxkitConsumerLate",),
    ),
    "worker-silent": FindingKind(
        severity=PROBLEM,
        what="The {kind} with {place} is connected, and has not said for {age} that it is there.",
        why="It hangs, or its event loop does: messages that it has in hand wait for it.",
        cure="Look at the last lines of its log, and end it: its supervisor starts it again. Nothing is lost.",
        commands=("kill -9 {pid}  # on {host}",),
        alerts=("OutboxkitNoProgress", "OutboxkitHandlerHangs", "OutboxkitTargetDown"),
    ),
    "exchange-differs": FindingKind(
        severity=PROBLEM,
        what="Relays of destination {destination} do not publish to one place: {places}.",
        why="Each message is published by one of them. Queues bound to one place miss the messages of others.",
        cure="Give all of them the same OUTBOXKIT_EXCHANGE and OUTBOXKIT_BROKER_URL. Stop those that are wrong, and "
        "have reconcile find what their messages missed:",
        commands=("outboxkit reconcile",),
        alerts=("OutboxkitReconcileMissing",),
    ),
    "relay-missing": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="{waits}, and {no_relay}.",
        why=f"What the application has committed reaches nobody else. {_KEPT}",
        cure="If a relay runs, read its log: it may have an old password, it is connected to another database, or a "
        "pooler hides its name. Otherwise start one, and let a supervisor keep it running (without a broker: "
        "outboxkit run). For a destination other than default, check its name, and give the relay the URL of its API "
        "in place of the broker's:",
        commands=("{relays}",),
        alerts=("OutboxkitRelayMissing", "OutboxkitTargetDown", "OutboxkitBacklog"),
    ),
    "relay-stuck": FindingKind(
        severity=PROBLEM,
        what="{waits}, though {relays}.",
        why=f"What the application has committed reaches nobody else. {_KEPT}",
        cure="Read the relay's log: it says which server is away, or what it refuses. The broker's findings of doctor "
        "may name the cause. If the log stands still, end the relay's process: its supervisor starts it again. "
        "Meanwhile a relay beside it moves what waits and is not locked:",
        commands=("{relay} --drain",),
        alerts=_RELAY_ALERTS,
    ),
    "type-failing": FindingKind(
        severity=WARNING,
        what="{messages} cannot be published{attempts}: {error}",
        why="They are tried again, and later messages of their keys wait. A refused one is a dead letter after "
        "OUTBOXKIT_MAX_ATTEMPTS; one that was put off counts no attempt.",
        cure="Mend what the error names. If no queue is bound for the type, start its consumer, again if it runs: "
        "that binds it. If a queue is full, start more consumers. They go at their next attempt by themselves.",
        alerts=("OutboxkitPublishFails", "OutboxkitPostponed"),
    ),
    "due-far": FindingKind(
        severity=NOTE,
        what="A message{to} is due only at {due}.",
        why="If that is a mistake, such as of a unit or of a time zone, nobody waits that long for it.",
        cure="Look at those that are due so late. If they are meant to be, there is nothing to do:",
        commands=("outboxkit waiting list --due-after {days}d", "outboxkit waiting due-now --due-after {days}d"),
    ),
    "handler-failing": FindingKind(
        severity=WARNING,
        what="{messages} of queue {queue} {are} tried again by {handler}, after up to {attempts}: {error}",
        why="Its effect has not happened yet. After OUTBOXKIT_MAX_ATTEMPTS a message is a dead letter.",
        cure="Mend what the error names; the consumer's log has the traceback. They succeed at their next attempt by "
        "themselves. This shows one of them:",
        commands=("outboxkit trace {message}",),
        alerts=("OutboxkitRetries", "OutboxkitQueueGrows", "OutboxkitNoHandler"),
    ),
    "key-parked": FindingKind(
        severity=PROBLEM,
        what="The key {key} is parked: {waiting} behind {dead}. The first is message {message}, {error}.{others}",
        why="Messages of a key stay in order, so that the later ones wait until an operator decides on the dead one.",
        cure="Look at the reason, and mend it. Then replay the dead letter, or discard it; the others follow:",
        commands=(
            "outboxkit dead show {number}",
            "outboxkit dead replay {number}",
            "outboxkit dead discard {number}",
        ),
        alerts=("OutboxkitParkedKeys",),
    ),
    "dead-letters": FindingKind(
        severity=WARNING,
        what="{letters} open ({reasons}). The oldest, for {age}: {type}, {error}",
        why="Each is an effect that did not happen. The longer it waits, the harder it is to make up for.",
        cure="Look at the reasons, mend the cause, then replay or discard them:",
        commands=(
            "outboxkit dead list{groups}",
            "outboxkit dead show {number}",
            "outboxkit dead replay {one}",
            "outboxkit dead discard {one}",
        ),
        alerts=("OutboxkitDeadLetters", "OutboxkitStale", "OutboxkitNoHandler"),
    ),
    "effect-unknown": FindingKind(
        severity=WARNING,
        what="{calls} to other systems may have happened or not.",
        why="The process ended between the call and its record. Only the other system knows.",
        cure="The next run decides as its on_unknown says. If none comes, ask the other system about these keys:",
        commands=("SELECT key FROM outboxkit_effect WHERE state = 'started' AND locked_until < CURRENT_TIMESTAMP;",),
    ),
    "handler-name-shared": FindingKind(
        severity=PROBLEM,
        what="{what}",
        why="The inbox knows a handler by its name alone. Of a message that reaches both queues one function runs, "
        "and the other consumer takes the message for a duplicate.",
        cure="{cure} If a queue was a mistake, forget it:",
        commands=("{mistake}  # if the queue was a mistake",),
        alerts=("OutboxkitDuplicates", "OutboxkitReconcileMissing"),
    ),
    "consumer-gone": FindingKind(
        severity=WARNING,
        what="No consumer of queue {queue} is connected, and the last one was seen {age} ago.",
        why="If the queue is bound still, its messages gather at the broker, and grow too old for the inbox.",
        cure="Start its consumer. If the queue is given up, or was a mistake, delete it at the broker, and forget its "
        "handlers:",
        commands=("{consume}", "{forget}  # if the queue is given up"),
        alerts=("OutboxkitConsumerMissing", "OutboxkitTargetDown"),
    ),
    "retention-short": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="{what}.",
        why="After an outage of some hours messages are too old for the inbox to know, and become dead letters. If "
        "retries last longer than the retention, consumers refuse to start: a message could be handled twice.",
        cure=f"Give consumers and prune a longer one. {_RETENTION}",
        commands=("OUTBOXKIT_INBOX_RETENTION={days}d",),
        alerts=("OutboxkitStale",),
    ),
    "retention-differs": FindingKind(
        severity=PROBLEM,
        what="OUTBOXKIT_INBOX_RETENTION is {here} here, and consumers count on more: {theirs}.",
        why="If a pruner has this setting, it forgets messages that these consumers still take. A duplicate of one is "
        "handled twice.",
        cure="Give all the same value, and prune first of all. If only this shell has another value than the pruner, "
        "set it here:",
        commands=("OUTBOXKIT_INBOX_RETENTION={days}d",),
    ),
    "prune-missing": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="{late}. So no pruner runs, or it fails.",
        why="The tables grow until the disk is full. Rows of a day without a partition go to the default one: nothing "
        "is lost, but they are deleted one by one, and the longer it grows the slower a new partition is made.",
        cure="Run it now, and see what it says. If it may not make partitions, the tables must belong to its role. "
        f"{_LEAST} Then run it once a day, by cron, a systemd timer or workers/retention.py:",
        commands=("outboxkit prune",),
        alerts=("OutboxkitRetentionNotRun",),
    ),
    "right-missing": FindingKind(
        severity=PROBLEM,
        what="Role {role} is to {work} and lacks rights: {missing}.",
        why="The process ends with “permission denied” at the first statement that needs them. Or it reads an empty "
        "table without an error, if row-level security hides the rows: such a relay publishes nothing.",
        cure="If another role does this work, run doctor as that one. Else grant them, as the owner of the tables. "
        f"{_LEAST}",
        commands=("{grants}",),
    ),
    "sessions-hidden": FindingKind(
        severity=WARNING,
        what="PostgreSQL hides other roles' sessions from role {role}.",
        why="Doctor and status cannot tell how long a transaction is open, nor what a relay does.",
        cure="Let the role that runs them see statistics. This shows no data of any table:",
        commands=("GRANT pg_read_all_stats TO {quoted_role};",),
    ),
    "sessions-blocked": FindingKind(
        severity=PROBLEM,
        what="{blocker}.",
        why="Each of these sessions stands still, with its place in its process and the messages behind it. To "
        "restart them is of no use: they would wait again.",
        cure="{step}. So that no session does this again, limit it for the application's role:",
        commands=("{end};", "ALTER ROLE {role} SET idle_in_transaction_session_timeout = '5min';"),
        alerts=("OutboxkitHandlerHangs", "OutboxkitPlacesTaken"),
    ),
    "handler-hangs": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="A handler of queue {queue} has not ended for {age}: its session, {pid}, has a transaction open.{more}",
        why=f"Its place in the consumer is taken, and later messages of its key wait. {_VACUUM}",
        cure="The consumer's log names handler and message: “handler has not ended”. Restart that consumer: the "
        "message comes again, and nothing of it is done twice. Then mend what the handler waits for, and give it a "
        "timeout. The last lines free the database at once; the handler goes on until the restart:",
        commands=('@inbox_handler("...", timeout=60)', "SELECT pg_terminate_backend({pids});"),
        alerts=("OutboxkitHandlerHangs", "OutboxkitLongTransaction", "OutboxkitPlacesTaken", "OutboxkitQueueGrows"),
    ),
    "transaction-open": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="Session {pid} of role {role} ({name}){origin} is {state} in a transaction that is open {age}.",
        why=_VACUUM,
        cure="Find what its application does: mostly it forgot to commit, or waits for something else. This ends the "
        "session, and rolls back what it did. So that no session does this again, limit it for the application's role:",
        commands=(
            "SELECT pg_terminate_backend({pid});",
            "ALTER ROLE {quoted_role} SET idle_in_transaction_session_timeout = '5min';",
        ),
        alerts=("OutboxkitLongTransaction",),
    ),
    "vacuum-held-back": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="{holder} holds back vacuum; it began {age}.",
        why=_VACUUM,
        cure="Ask the transaction manager that prepared a transaction for its decision. Have a slot's reader catch "
        "up, or drop the slot if there is none any more. End a query on the standby; its pg_stat_activity names it:",
        commands=(
            "COMMIT PREPARED {gid};",
            "ROLLBACK PREPARED {gid};",
            "SELECT pg_drop_replication_slot({slot});",
            "ALTER SYSTEM SET hot_standby_feedback = off;  -- on {standby}",
        ),
        alerts=("OutboxkitLongTransaction",),
    ),
    "slot-unused": FindingKind(
        severity=PROBLEM,
        what="Nobody reads from the replication slot {slot}, which keeps {size} of WAL.",
        why="The server keeps its write-ahead log for the slot until the disk is full, and then it stops.",
        cure="Start the slot's reader again. If there is none any more, this gives the slot up:",
        commands=("SELECT pg_drop_replication_slot('{slot}');",),
    ),
    "table-locked": FindingKind(
        severity=PROBLEM,
        what="Session {pid} ({name}), {state}, has locked {table} ({mode}) for {age}, {waiting} wait for it.",
        why="Other sessions cannot write the table, and perhaps not read it: requests, relays and consumers stand "
        "still.",
        cure="If it is a migration, let it end, and give later ones a lock_timeout. If it was forgotten, end it:",
        commands=("SELECT pg_terminate_backend({pid});",),
        alerts=_RELAY_ALERTS,
    ),
    "vacuum-behind": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="{what}.",
        why="A relay deletes every row that it has published. Without vacuum the outbox grows for ever and slows down.",
        cure="Turn autovacuum on, if it is off. If a finding says that something holds vacuum back, end that first. "
        "Then vacuum; nothing has to wait meanwhile:",
        commands=("{undo}", "VACUUM (VERBOSE, ANALYZE) {table};"),
        alerts=("OutboxkitLongTransaction",),
    ),
}
"""The kinds of findings in the database, by code."""

_STANDS = "Messages wait in the outbox until this is mended. None is lost, and none arrives."
_TAKES_AWAY = "An outage of a consumer, or a crash, then takes away messages that no handler has seen."

OF_THE_BROKER: Mapping[str, FindingKind] = {
    "broker-away": FindingKind(
        severity=PROBLEM,
        what="The broker at {broker} cannot be used: {reason}.",
        why=_STANDS,
        cure="Start it, or correct host, user, password and virtual host in OUTBOXKIT_BROKER_URL, in which / is "
        "written %2F. Or give the user its password or its rights, or name the authority of its certificate as "
        "?cafile=. An installation without a broker, as `outboxkit run` works, is examined with `--only database`:",
        commands=(
            "nc -vz {host}",
            "rabbitmqctl change_password {user}",
            "rabbitmqctl add_vhost {vhost}",
            "{grant}  # the rights of these settings, which with MODULE and --queue are also those of a consumer",
            "openssl s_client -connect {tls} -showcerts",
        ),
        alerts=("OutboxkitDisconnected", "OutboxkitConsumerDisconnected"),
    ),
    "broker-rights-missing": FindingKind(
        severity=PROBLEM,
        what="User {user} lacks rights: {rights}.",
        why="The relay or the consumer ends at its start, or waits if the right was taken away later.",
        cure="Give the user the rights that these settings need.",
        commands=("{grant}  # with MODULE and --queue also those of a consumer",),
    ),
    "broker-alarm": FindingKind(
        severity=PROBLEM,
        what="The broker has an alarm: {alarms}.",
        why="It reads from no connection that publishes. Relays wait, and so do retries of consumers.",
        cure="Free disk or memory: let consumers empty their queues, or give the broker more.",
        commands=("rabbitmq-diagnostics alarms", "rabbitmqctl list_queues name messages memory"),
        alerts=_RELAY_ALERTS,
    ),
    "exchange-missing": FindingKind(
        severity=PROBLEM,
        what="There is no durable topic exchange {exchange} in virtual host {vhost}: {reason}.",
        why="If it was deleted, all bindings went with it, and messages are unroutable until they are back. If it is "
        "of another kind, relays and consumers end at their start.",
        cure="Start a relay, which declares it, and start the consumers again, which bind their queues. If it is of "
        "another kind, choose another OUTBOXKIT_EXCHANGE.",
        commands=("outboxkit relay",),
        alerts=("OutboxkitPublishFails",),
    ),
    "queue-missing": FindingKind(
        severity=PROBLEM,
        what="In virtual host {vhost} there is no queue {queues}{reason}.",
        why="Messages of its types reach nobody: they stay in the outbox as unroutable, if no other queue takes them. "
        "Without the queues beside it, failed messages have no place to wait in.",
        cure="Start its consumer, again if it runs, which declares and binds it, or correct OUTBOXKIT_QUEUE. If the "
        "queue is given up, or was a mistake, forget its handlers.",
        commands=("{consume}", "{forget}  # if the queue is given up"),
        alerts=("OutboxkitPublishFails", "OutboxkitPostponed"),
    ),
    "queue-kind": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="Queue {queue} is not as its consumer needs it: {reason}.",
        why="The consumer of another declaration ends at its start. A stream keeps what was acked. A classic queue is "
        "on one node and counts no redeliveries. Keys keep their order with a single active consumer alone.",
        cure="Set OUTBOXKIT_ORDERED as the queue is, consume it as it is with OUTBOXKIT_DECLARE=false, or choose "
        "another OUTBOXKIT_QUEUE. Or let it run empty and delete it: its consumer declares it anew.",
        commands=("{delete}  # once it is empty: it takes its messages with it", "{consume}"),
        alerts=("OutboxkitConsumerMissing",),
    ),
    "retries-unroutable": FindingKind(
        severity=PROBLEM,
        what="Queue {queue} has {messages} whose queue was deleted while they waited for their next attempt.",
        why="Nobody reads them. The routing key of each is the name of its queue.",
        cure="Start the consumers of those queues, which declare them again. Then have RabbitMQ's shovel bring the "
        "messages back. Or purge the queue, if its consumers are gone for good.",
        commands=("rabbitmq-plugins enable rabbitmq_shovel", "{shovel}"),
    ),
    "queue-unbound": FindingKind(
        severity=PROBLEM,
        what="Queue {queue} is not bound to exchange {exchange} for {types}.",
        why="Its handlers get none of these messages. They go to other queues, or are unroutable, and the consumer "
        "waits for ever and looks well.",
        cure="Start the consumer again with these handlers, which binds their types each time it connects. With "
        "OUTBOXKIT_DECLARE=false, bind them:",
        commands=("{binds}",),
        alerts=("OutboxkitPublishFails",),
    ),
    "type-unwanted": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="No queue is bound to exchange {exchange} for messages in the outbox: {types}.",
        why="They are unroutable: the relay tries each for a while, and then it is a dead letter. Later messages of "
        "its key wait until then.",
        cure="Start the consumer that handles them, again if it runs: that binds its queue. Or bind a queue, or "
        "correct the type; or the relay and its consumers have different exchanges, OUTBOXKIT_EXCHANGE. An event that "
        'no handler needs to take is @event(…, unroutable="discard").',
        commands=("{consume}", "{binds}"),
        alerts=("OutboxkitPublishFails",),
    ),
    "queue-unconsumed": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="Nobody consumes {queues}, and {messages}.{bound}",
        why="What arrives there is not handled. It piles up until the broker's memory or disk is full, and then nobody "
        "can publish.",
        cure="Start its consumer, and look at the last lines of its log if it runs or has ended. If the queue is "
        "another service's, its owner does so. If it is given up, or was a mistake, its owner deletes it, and forgets "
        "its handlers.",
        commands=("{consume}", "{delete}  # if the queue is given up", "{forget}  # if the queue is given up"),
        alerts=("OutboxkitConsumerMissing", "OutboxkitConsumerLate"),
    ),
    "queue-full": FindingKind(
        severity=PROBLEM,
        what="Queue {queue} is full: it has {fill}{whose}.",
        why="It refuses new messages. Those that are to reach it stay in the outbox: a message leaves once all of its "
        "queues take it. Failed messages that come back to it hold up those of other queues.",
        cure="Start its consumer, or more of them, and look in its log for what slows it down. Else raise the limit.",
        commands=("{consume}", "rabbitmqctl list_queues -p {vhost} name messages consumers"),
        alerts=("OutboxkitPostponed",),
    ),
    "queue-drops": FindingKind(
        severity=WARNING,
        worse=PROBLEM,
        what="The broker takes messages away from queue {queue}: {limits}. They {end}.",
        why=_TAKES_AWAY,
        cure="Take the limit out of the policy, or have its pattern leave this queue alone. If it is an argument, let "
        "the queue run empty, delete it, and declare it without. Dropped messages need a queue of their own.",
        commands=("{undo}",),
    ),
    "management-unread": FindingKind(
        severity=NOTE,
        worse=WARNING,
        what="{silence}. AMQP does not tell, so these were not checked: {unseen}.",
        why="These are the broker's ways to hold or drop messages in silence.",
        cure="Enable the plugin and let a user read it; name it in OUTBOXKIT_MANAGEMENT_URL if it is elsewhere: "
        "http://user:password@host:15672.",
        commands=(
            "rabbitmq-plugins enable rabbitmq_management",
            "rabbitmqctl set_user_tags {user} monitoring  # if it refuses this user; drops tags that are not named",
            "{grant}  # if a worker lacks rights: those of these settings, in place of its own",
        ),
    ),
}
"""The kinds of findings at the broker, likewise."""

FINDINGS: Mapping[str, FindingKind] = {
    "not-checked": FindingKind(
        severity=WARNING,
        what="The check of {check} could not be done: {reason}.",
        why="Nobody knows whether this part of the installation is safe.",
        cure="Mend what the other findings name, and run doctor again; if a server took too long, when it is less "
        "busy. If it lacks a right, run it as a role that may read outboxkit's tables, such as the operator's of "
        "docs/how-to/grant-least-privileges.md. If a table is locked, `table-locked` names the session after ten "
        "seconds.",
    ),
    **OF_THE_DATABASE,
    **OF_THE_BROKER,
}
"""All findings by code."""
