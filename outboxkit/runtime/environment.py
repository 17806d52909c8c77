"""The variables of this process behind `OUTBOXKIT_`: secrets that stand in files, and names that no setting has."""

import os
import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path

from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import printable

PREFIX = "OUTBOXKIT_"
FILE = "_FILE"
OTHERS = re.compile(rf"{PREFIX}TEST_.*|{PREFIX}(.*_)?(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")
"""Variables of the project's own tests, and those that Kubernetes makes for a Service called outboxkit-something."""
LARGEST = 64 * 1024
REPLACED = {
    "KEEP_PUBLISHED": "OUTBOXKIT_PUBLISHED_RETENTION",
    "RETRY_LADDER": "OUTBOXKIT_RETRY_DELAYS",
    "CONSUME_BATCH": "OUTBOXKIT_CONSUME_BATCH_SIZE",
    "APP_ID": "RabbitPublisher(app_id=…)",
    "HTTP_CLOUDEVENTS": "OUTBOXKIT_CLOUDEVENTS",
    "PREFETCH": "RabbitSubscriber(prefetch=…)",
    "PRUNE_INTERVAL": "INTERVAL in workers/retention.py",
    "UNROUTABLE": '@event(…, unroutable="discard")',
    "MAX_CRASHES": "consumer.ConsumerPolicy(max_crashes=…)",
    "CLOCK_SKEW": "skew=… of consumer.ConsumerPolicy and retention.Periods",
    "MAX_PAYLOAD_BYTES": "outbox.add(…, max_payload_bytes=…)",
}
"""Former settings without their prefix, and the settings that replace them."""


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def variables() -> dict[str, str]:
    """All variables behind the prefix; the names in capitals, for settings are read in either case."""
    return {name.upper(): value for name, value in os.environ.items() if name.upper().startswith(PREFIX)}


def unknown(known: Collection[str]) -> Iterator[str]:
    """A line for each variable behind the prefix that is not a known one, with what replaced it or the nearest one."""
    for name in sorted(set(variables()) - set(known)):
        if OTHERS.fullmatch(name) is None:
            yield f"{printable(name)} is not a setting{_hint(name.removeprefix(PREFIX), known)}"


def _hint(name: str, known: Collection[str]) -> str:
    if name in REPLACED:
        return f" any more: {REPLACED[name]} took its place"
    near = get_close_matches(name, sorted(each.removeprefix(PREFIX) for each in known), n=1, cutoff=0.66)
    return f": did you mean {PREFIX}{near[0]}?" if near else ""


def read_secret(path: str, *, named: str) -> str:
    """The one line of a file that holds a secret, without the line's end.

    Raises:
        ConfigurationError: it cannot be read, or holds something else. The text has the path and nothing of the secret.
    """
    where = named if _is_secret(path) else f"{named} is {path!r}"
    accepted = "a file with the value in one line is accepted"
    if not path:
        raise ConfigurationError(f"{named} is empty; {accepted}")
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"{where}: it cannot be read ({error.strerror}); {accepted}") from None
    except ValueError:
        raise ConfigurationError(f"{where}: it is not text in UTF-8; {accepted}") from None
    if not text.strip():
        raise ConfigurationError(f"{where}: it is empty; {accepted}")
    if len(content) > LARGEST or not text.isprintable():
        raise ConfigurationError(f"{where}: it holds more than one line of text; {accepted}")
    return text


def _is_secret(path: str) -> bool:
    """Whether it may be the secret itself, given in place of its file's path."""
    return not path.startswith(("/", "."))
