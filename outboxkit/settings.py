"""Settings from `OUTBOXKIT_*`: read once by a process, checked at once, and never printing a password."""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from outboxkit import environment, urls
from outboxkit.brokers import DEFAULT_DELAYS
from outboxkit.codec import MAX_PAYLOAD_BYTES
from outboxkit.environment import FILE, PREFIX, variable
from outboxkit.errors import ConfigurationError
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.retry import ATTEMPTS_LIMIT

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
LONGEST = timedelta(days=36_500)
_SWITCH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_HEADER = re.compile(r"[!-~]+(?: [!-~]+)*")
_LIMITS = (("ge", "from"), ("le", "to"))
_DURATION_HINT = "a duration such as 500ms, 10s, 5m, 2h or 7d"


def parse_duration(text: object) -> timedelta:
    """`500ms`, `10s`, `5m`, `2h` or `7d` as a timedelta; a timedelta is returned as it is.

    Raises:
        ValueError: it reads otherwise.
    """
    if isinstance(text, timedelta):
        return text
    found = _DURATION.fullmatch(str(text).strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST.total_seconds():
        raise ValueError(f"{_DURATION_HINT} is accepted, longer than nothing and up to {LONGEST.days}d")
    return timedelta(seconds=seconds)


def _parse_delays(text: object) -> object:
    return tuple(parse_duration(part) for part in text.split(",")) if isinstance(text, str) else text


def _parse_switch(text: object) -> object:
    if isinstance(text, str):
        if text.lower() not in _SWITCH:
            raise ValueError("true or false is accepted")
        return _SWITCH[text.lower()]
    return text


def _lowered(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Delays = Annotated[tuple[Duration, ...], NoDecode, BeforeValidator(_parse_delays), Field(min_length=1)]


class Settings(BaseSettings):
    """Every setting. The variable is the name in capitals behind `OUTBOXKIT_`; options of the same name win over it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    database_url: SecretStr = Field(description="where the tables are: postgresql+psycopg://… or sqlite:///…")
    broker_url: SecretStr = Field(
        SecretStr("amqp://guest:guest@localhost:5672/"),
        description="the broker: amqp://…, amqps://… or memory://, several with commas are tried one after another; "
        "or, for a relay, an HTTP destination: https://…",
    )
    destination: str = Field(
        DEFAULT_DESTINATION, min_length=1, max_length=255, description="the destination whose messages are published"
    )
    http_authorization: SecretStr | None = Field(
        None, description="the Authorization header for an HTTP destination, such as Bearer …"
    )
    http_secret: SecretStr | None = Field(
        None, description="the secret that signs requests to an HTTP destination (Standard Webhooks): whsec_…"
    )
    http_cloudevents: Annotated[bool, BeforeValidator(_parse_switch)] = Field(
        default=False, description="requests to an HTTP destination carry the headers of CloudEvents"
    )
    exchange: str = Field("outboxkit", min_length=1, max_length=255, description="the topic exchange")
    queue: str | None = Field(None, min_length=1, max_length=200, description="the consumer's queue")
    app_id: str = Field("outboxkit", max_length=255, description="AMQP app_id of what the relay publishes")
    batch_size: int = Field(2000, ge=1, le=10_000, description="rows that the relay claims at once, at most")
    publish_timeout: Duration = Field(
        timedelta(seconds=10),
        description="how long a batch may wait for its confirms, and how long --drain waits for one who is away",
    )
    poll_interval: Duration = Field(
        timedelta(milliseconds=250), description="how long an idle relay waits if no NOTIFY wakes it"
    )
    max_payload_bytes: int = Field(MAX_PAYLOAD_BYTES, ge=1, description="the largest event that outbox.add accepts")
    concurrency: int = Field(
        8, ge=1, le=1000, description="deliveries that a consumer handles at once, or requests that a relay has open"
    )
    prefetch: int = Field(64, ge=1, le=65_535, description="deliveries that the broker may push ahead")
    consume_batch_size: int = Field(
        200, ge=1, le=10_000, description="deliveries that share a transaction at handlers with batch=True, at most"
    )
    ordered: Annotated[bool, BeforeValidator(_parse_switch)] = Field(
        default=False, description="messages of one key one after the other, on one consumer at a time"
    )
    max_crashes: int = Field(
        3, ge=1, description="starts of a message that end with the process, before it goes to the dead letters"
    )
    max_attempts: int = Field(
        10, ge=1, le=ATTEMPTS_LIMIT, description="failures after which a message goes to the dead letters"
    )
    unroutable: Literal["bury", "discard"] = Field(
        "bury", description="a message that no queue wants, after all attempts: bury it, or discard it at once"
    )
    dead_key: Literal["park", "continue"] = Field(
        "park", description="later messages of a dead one's key wait for an operator (park), or go on"
    )
    published_retention: Duration | None = Field(
        None, description="how long published messages are kept for a replay; deleted at once where it is not set"
    )
    inbox_retention: Duration = Field(
        timedelta(days=14), description="how long the inbox remembers; older deliveries are stale"
    )
    clock_skew: Duration = Field(
        timedelta(minutes=5), description="how far clocks may be apart; the inbox forgets later, and refuses earlier"
    )
    dead_retention: Duration | None = Field(
        None, description="how long dead letters are kept, but for those that park a key; for ever where it is not set"
    )
    prune_interval: Duration = Field(timedelta(hours=1), description="how often workers/retention.py prunes")
    retry_delays: Delays = Field(DEFAULT_DELAYS, description="delays of a failed message, ascending, with commas")
    shutdown_timeout: Duration = Field(
        timedelta(seconds=25), description="how long a stop may take to finish what is in flight"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lowered)] = Field(
        "info", description="what is logged, at least"
    )
    log_format: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else json")

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, value: SecretStr) -> SecretStr:
        urls.check_database(value.get_secret_value())
        return value

    @field_validator("broker_url")
    @classmethod
    def _check_broker_url(cls, value: SecretStr) -> SecretStr:
        urls.check_broker(value.get_secret_value())
        return value

    @field_validator("http_authorization")
    @classmethod
    def _check_authorization(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and _HEADER.fullmatch(value.get_secret_value()) is None:
            raise ValueError("the value of a header is accepted, such as Bearer …: one line of visible ASCII")
        return value

    @field_validator("http_secret")
    @classmethod
    def _check_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _is_signing_secret(value.get_secret_value()):
            raise ValueError("whsec_ and 24 to 64 bytes in base64 is accepted, as Standard Webhooks has it")
        return value

    @field_validator("retry_delays")
    @classmethod
    def _check_delays(cls, value: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("ascending durations with commas between them are accepted, such as 1s,10s,1m")
        return value


def _is_signing_secret(text: str) -> bool:
    try:
        key = b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    return text.startswith("whsec_") and 24 <= len(key) <= 64


SECRETS = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if SecretStr in (field.annotation, *get_args(field.annotation))
)
"""Settings whose values are never shown, and may stand in a file that `OUTBOXKIT_…_FILE` names."""


def load(options: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings: options that are not None, then the environment, then the defaults.

    Each of `SECRETS` may stand in a file instead: the option `database_url_file`, the variable
    `OUTBOXKIT_DATABASE_URL_FILE` and so on name it. It is read once.

    Raises:
        ConfigurationError: one line for each bad value: the variable, what was found, what is accepted.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    named = {name: option(name) for name in given}
    try:
        for name in sorted(SECRETS):
            _read_file(name, given, named)
        return Settings(**given)
    except ValidationError as error:
        bad = [problem for problem in error.errors() if problem["type"] != "missing"]
        lines = [_explain(problem, given, named) for problem in bad or error.errors()]
    except ConfigurationError as error:
        lines = [str(error)]
    raise ConfigurationError("\n".join([*lines, *unknown_variables()]))


def unknown_variables() -> Iterator[str]:
    """A line for each `OUTBOXKIT_…` variable that is not a setting, with the nearest that is one."""
    known = [variable(name) for name in Settings.model_fields]
    return environment.unknown([*known, *(variable(name) + FILE for name in SECRETS)])


def option(name: str) -> str:
    """The command line's option for a setting."""
    return f"--{name.replace('_', '-')}"


def _read_file(name: str, given: dict[str, Any], named: dict[str, str]) -> None:
    """Put what a secret's file holds, if one is named, among the values, and say where it is from."""
    found = environment.variables()
    path, of_option = given.pop(name + FILE.lower(), None), option(name + FILE.lower())
    as_value, as_file = variable(name), variable(name) + FILE
    if path is not None and name in given:
        raise ConfigurationError(f"{option(name)} and {of_option} are both given: one of them is accepted")
    if path is not None:
        given[name], named[name] = environment.read_secret(path, named=of_option), of_option
    elif name not in given and as_file in found:
        if as_value in found:
            raise ConfigurationError(f"{as_value} and {as_file} are both set: one of them is accepted")
        given[name], named[name] = environment.read_secret(found[as_file], named=as_file), as_file


def _accepted(problem: Any) -> str:
    """What pydantic would have taken, in the words of the other errors."""
    kind, bounds = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        return f"{bounds['expected']} is accepted"
    if kind.startswith("int_") or kind in ("greater_than_equal", "less_than_equal"):
        limits = Settings.model_fields[str(problem["loc"][0])].metadata
        parts = [(word, getattr(each, name)) for name, word in _LIMITS for each in limits if hasattr(each, name)]
        return " ".join(["a whole number", *(f"{word} {limit}" for word, limit in parts), "is accepted"])
    return str(problem["msg"]).removeprefix("Value error, ")


def _explain(problem: Any, given: Mapping[str, Any], named: Mapping[str, str]) -> str:
    name = str(problem["loc"][0])
    shown = named.get(name, variable(name))
    if problem["type"] == "missing":
        return f"{shown} is not set: {urls.DATABASES} is accepted, there or in the file that {shown}{FILE} names"
    raw = given[name] if name in given else environment.variables().get(variable(name), problem["input"])
    found = "" if name in SECRETS else f" is {raw!r}"
    accepted = _accepted(problem)
    return f"{shown}{found}{':' if found else ' cannot be used:'} {accepted}"
