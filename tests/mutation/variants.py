"""Broken variants of outboxkit, each of which breaks a promise in one place: `make mutation ARGS="variants"`.

Each is put into a copy of the repository, one at a time, and the tests beside it run. One must fail.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Variant(NamedTuple):
    """A promise that no longer holds if the text `right` of a module, which it has once, becomes `wrong`.

    Attributes:
        tests: the files and folders below `tests/` of which a test must fail.
    """

    broken: str
    module: str
    right: str
    wrong: str
    tests: str


VARIANTS = (
    Variant(
        "a message that reached no queue counts as published",
        "brokers/rabbitmq/confirms.py",
        "self._receipts[index] = Receipt(Verdict.UNROUTABLE, reason)",
        "self._receipts[index] = CONFIRMED",
        "unit/brokers",
    ),
    Variant(
        "messages are not published as mandatory",
        "brokers/rabbitmq/encode.py",
        "BASIC, PUBLISH, MANDATORY = 60, 40, 1",
        "BASIC, PUBLISH, MANDATORY = 60, 40, 0",
        "unit/brokers",
    ),
    Variant(
        "messages are lost with a restart of the broker",
        "brokers/rabbitmq/encode.py",
        "_MODE, _END = bytes((PERSISTENT,)),",
        "_MODE, _END = bytes((1,)),",
        "unit/brokers",
    ),
    Variant(
        "a message without an answer of the broker leaves the outbox",
        "relay/decisions.py",
        "                _block(settlement, row, None)\n            case Verdict.NOT_SENT:",
        "                settlement.published.append(row.position)\n            case Verdict.NOT_SENT:",
        "unit/relay",
    ),
    Variant(
        "a dead message is deleted and not kept",
        "relay/settle.py",
        "for rows in _alike(settlement.dead):",
        "for rows in _alike([]):",
        "integration/relay",
    ),
    Variant(
        "two relays claim the same rows",
        "statements/claim.py",
        ".where(*ready_rows()).order_by(*_ORDER).limit(_LIMIT).with_for_update(skip_locked=True)",
        ".where(*ready_rows()).order_by(*_ORDER).limit(_LIMIT)",
        "integration/relay",
    ),
    Variant(
        "a reply has another id each time that its message is published",
        "relay/decisions.py",
        '"id": ids.derive("reply", cause.id),',
        '"id": ids.new(),',
        "unit/relay",
    ),
    Variant(
        "the floor rises past a row whose transaction is slow to commit",
        "relay/floor.py",
        "if self._mark is None or not self._mark[1] & now:",
        "if self._mark is None or now is not None:",
        "unit/relay",
    ),
    Variant(
        "a message overtakes an earlier one of its key that another relay has",
        "relay/order.py",
        "elif earlier.ready_at is not None and earlier.ready_at < row.position:",
        "elif earlier.ready_at is not None and earlier.ready_at > row.position:",
        "unit/relay",
    ),
    Variant(
        "a dead message does not park its key",
        "relay/decisions.py",
        'parked = policy.dead_key == "park" and',
        'parked = policy.dead_key != "park" and',
        "unit/relay",
    ),
    Variant(
        "a queue that is full burns attempts",
        "relay/decisions.py",
        "_try_again(settlement, row, receipt, now + after, failures=0)",
        "_try_again(settlement, row, receipt, now + after, failures=1)",
        "unit/relay",
    ),
    Variant(
        "a handler is called again for a duplicate",
        "inbox/run_once.py",
        "        return Outcome.DUPLICATE\n    installation, number",
        "        call(handler, session, connection, event, message, attempt=attempt, installation='')\n"
        "        return Outcome.DUPLICATE\n    installation, number",
        "unit/inbox integration/inbox",
    ),
    Variant(
        "a second entry of one message in a batch is handled twice",
        "inbox/run_batch.py",
        "installation=new.pop(entry.key), leave=leave)",
        "installation=new[entry.key], leave=leave)",
        "unit/inbox integration/inbox",
    ),
    Variant(
        "a delivery is acked although its dead letter was not written",
        "consumer/handle.py",
        "await (arrival.ack() if done else arrival.requeue())",
        "await arrival.ack()",
        "unit/consumer integration/consumer",
    ),
    Variant(
        "a delivery is acked before its copy for a retry is confirmed",
        "brokers/rabbitmq/incoming.py",
        "        await self._source.copy(self, delivery_headers, delay)\n        await self.ack()",
        "        await self.ack()\n        await self._source.copy(self, delivery_headers, delay)",
        "unit/brokers integration/broker",
    ),
    Variant(
        "an ack covers a delivery that is still being handled",
        "brokers/rabbitmq/incoming.py",
        "below = [tag for tag in tags if tag < lowest]",
        "below = [tag for tag in tags if tag]",
        "unit/brokers",
    ),
    Variant(
        "a message is handled although the inbox may have forgotten it",
        "runtime/window.py",
        "now - moment > retention - skew",
        "now - moment > retention + skew",
        "unit/inbox unit/consumer unit/runtime",
    ),
    Variant(
        "rows of the inbox are forgotten too early",
        "runtime/window.py",
        "age = retention + skew",
        "age = retention - skew",
        "unit/inbox unit/runtime",
    ),
    Variant(
        "a message that ends its process is tried for ever",
        "consumer/decisions.py",
        "return starts > policy.max_crashes",
        "return starts < 0",
        "unit/consumer",
    ),
    Variant(
        "two messages of a key are handled at once",
        "consumer/key_queues.py",
        "def _may_start(self, arrival: Arrival, batch_keys: Iterable[str] = ()) -> bool:\n",
        "def _may_start(self, arrival: Arrival, batch_keys: Iterable[str] = ()) -> bool:\n        return True\n",
        "unit/consumer",
    ),
    Variant(
        "a request commits its work without its answer",
        "http/ledger.py",
        'if not event.contains(session, "before_commit", _refuse_commit):',
        'if event.contains(session, "before_commit", _refuse_commit):',
        "unit/http integration/http",
    ),
    Variant(
        "another request under a used key gets the first one's answer",
        "http/ledger.py",
        "if row.fingerprint != fingerprint:",
        "if not row.fingerprint:",
        "unit/http integration/http",
    ),
    Variant(
        "a run whose lease has ended writes over the next one's",
        "statements/effects.py",
        '_MINE = and_(_THIS, effect.c.token == bindparam("at_token", type_=effect.c.token.type), _IS_STARTED)',
        "_MINE = and_(_THIS, _IS_STARTED)",
        "unit/effects integration/effects",
    ),
    Variant(
        "a dead letter is replayed once for each operator",
        "operators/sql/resolve.py",
        '.where(dead_letter.c.resolution.is_(None), among(dialect, dead_letter.c.id, "ids"))\n        .order_by',
        '.where(among(dialect, dead_letter.c.id, "ids"))\n        .order_by',
        "unit/operators integration/operators",
    ),
    Variant(
        "a small message may become as large as it likes",
        "codec/compression.py",
        "            if size > limit:\n",
        "            if size < 0:\n",
        "unit/codec",
    ),
    Variant(
        "the rows of a relay that froze stay locked",
        "runtime/process.py",
        "name=relay_name(destination), idle_in_transaction=publish_timeout * 3 + LEAVING)",
        "name=relay_name(destination))",
        "integration/database/test_defaults.py",
    ),
    Variant(
        "a message in a new shard overtakes those of its key in an old one, for a moment",
        "consumer/consumer.py",
        "            dispatcher.hold(self._held)\n",
        "",
        "unit/consumer/test_dispatcher.py",
    ),
    Variant(
        "a message that is long on its way to an old shard comes behind its end",
        "runtime/compose.py",
        "        publish_timeout=settings.publish_timeout,\n        patience=patience,",
        "        publish_timeout=defaults.PUBLISH_TIMEOUT,\n        patience=patience,",
        "unit/consumer/test_several.py",
    ),
    Variant(
        "a consumer ends in an outage that lasts",
        "runtime/compose.py",
        "patience = settings.publish_timeout if drain else None",
        "patience = settings.publish_timeout",
        "unit/consumer/test_several.py",
    ),
    Variant(
        "a handler undoes what another one of its batch has done",
        "inbox/run_batch.py",
        "if transaction.has_savepoint(session, self._connection, self._savepoint):",
        "if False:",
        "integration/consumer/test_batch_isolation.py",
    ),
    Variant(
        "a consumer has the rules of the defaults",
        "runtime/compose.py",
        "            policy=policy,\n            patience=patience,\n            readers",
        "            patience=patience,\n            readers",
        "unit/consumer/test_several.py",
    ),
    Variant(
        "a consumer does not have its readers",
        "runtime/compose.py",
        "            readers=readers,\n",
        "",
        "unit/consumer/test_several.py",
    ),
    Variant(
        "what came without an id is never replayed, whatever readers there are",
        "operators/deadletters/refusal.py",
        "has_readers=bool(settings.readers)",
        "has_readers=False",
        "unit/operators/deadletters",
    ),
    Variant(
        "nobody knows the handlers of a queue that is split",
        "consumer/consumer.py",
        "self._registers = shard in (None, queue)",
        "self._registers = shard is None",
        "unit/consumer/test_several.py",
    ),
    Variant(
        "a service without a broker handles what its inbox has forgotten",
        "cli/run.py",
        "timeout=settings.publish_timeout, retention=settings.inbox_retention)",
        "timeout=settings.publish_timeout)",
        "unit/cli/test_compose.py",
    ),
    Variant(
        "a relay does not wait for its broker as long as its settings say",
        "runtime/compose.py",
        "        timeout=settings.publish_timeout,\n        concurrency",
        "        timeout=defaults.PUBLISH_TIMEOUT,\n        concurrency",
        "unit/cli/test_compose.py",
    ),
    Variant(
        "`run` prunes nothing",
        "cli/run.py",
        "        parts.append(partial(retention.run, interval=PRUNED_EACH))\n",
        "",
        "acceptance/test_run.py",
    ),
    Variant(
        "a replay of kept messages for one handler runs all of its queue",
        "cli/republish.py",
        "            tuple(dict.fromkeys(handlers)),\n",
        "            (),\n",
        "unit/cli/test_republish.py",
    ),
    Variant(
        "a replay of dead letters does not keep to its rate",
        "cli/dead/__init__.py",
        "rules=rules, rate=rate, by=by)",
        "rules=rules, by=by)",
        "unit/cli/dead",
    ),
    Variant(
        "an operator's name is lost",
        "cli/dead/__init__.py",
        "rules=rules, rate=rate, by=by)",
        "rules=rules, rate=rate)",
        "unit/cli/dead",
    ),
    Variant(
        "an old shard is left although it may have messages",
        "consumer/shards.py",
        "            if keys == ():\n",
        "            if not keys:\n",
        "unit/consumer/test_sharded.py",
    ),
    Variant(
        "messages without a key are left in an old shard",
        "brokers/rabbitmq/subscriber.py",
        "return None if None in keys else tuple",
        "return tuple",
        "unit/brokers/rabbitmq/test_subscriber.py",
    ),
    Variant(
        "an operation of the console ends in an outage",
        "operators/background.py",
        "            if what_is_away(error) is not None:  # it goes on when the lease has ended",
        "            if error is None:",
        "unit/console/test_operations.py",
    ),
    Variant(
        "the console never replays what is stale, whatever its form says",
        "operators/background.py",
        "accept_stale=plan.accept_stale)",
        "accept_stale=False)",
        "unit/console/test_operations.py",
    ),
)


def broken_copies(folder: Path) -> Iterator[Variant]:
    """Each variant, while the copy in the folder has it."""
    for variant in VARIANTS:
        path = folder / "outboxkit" / variant.module
        text = path.read_text()
        path.write_text(text.replace(variant.right, variant.wrong))
        yield variant
        path.write_text(text)


def run_variants(folder: Path) -> int:
    """Run the tests of each variant, and print what they noticed. Returns the number of those that went unnoticed."""
    pytest = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not night", "--no-header")
    unnoticed = 0
    for variant in broken_copies(folder):
        tests = [f"tests/{name}" for name in variant.tests.split()]
        environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            (*pytest, *tests), cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        failed = [
            line.split(" - ")[0] for line in run.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))
        ]
        is_noticed = run.returncode == 1 and failed
        unnoticed += not is_noticed
        print(f"{'noticed' if is_noticed else 'NOT NOTICED'}: {variant.broken}: {', '.join(failed)}", flush=True)
    return unnoticed
