"""Settings from `OUTBOXKIT_*`: read once by a process, checked at once, and never printing a password."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from outboxkit import defaults
from outboxkit.codec.compression import INFLATED_LIMIT
from outboxkit.errors import ConfigurationError
from outboxkit.errors.extras import needs_extra
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.retry import ATTEMPTS_LIMIT
from outboxkit.runtime import environment, urls
from outboxkit.runtime.environment import FILE, PREFIX, variable
from outboxkit.runtime.sources import BUCKETS, MOST_AT_ONCE, Binding, ConsumedQueue, parse_bindings, parse_queues

with needs_extra(__name__):
    from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
    from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
LONGEST_DURATION = timedelta(days=36_500)
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_LIMITS = (("ge", "from"), ("le", "to"))
_DURATION_HINT = "a duration such as 500ms, 10s, 5m, 2h or 7d"


def parse_duration(text: object) -> timedelta:
    """`500ms`, `10s`, `5m`, `2h` or `7d` as a timedelta; a timedelta is returned as it is.

    Raises:
        ValueError: it reads otherwise.
    """
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(str(text).strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_DURATION.total_seconds():
        raise ValueError(f"{_DURATION_HINT} is accepted, longer than nothing and up to {LONGEST_DURATION.days}d")
    return timedelta(seconds=seconds)


def _parse_delays(text: object) -> object:
    return tuple(parse_duration(part) for part in text.split(",")) if isinstance(text, str) else text


def _parse_names(text: object) -> object:
    names = tuple(part.strip() for part in text.split(",")) if isinstance(text, str) else text
    if isinstance(names, tuple) and not all(names):
        raise ValueError("names with commas between them are accepted, such as cloudevents,shop.readers:legacy")
    return names


def _lowered(text: object) -> object:
    return text.lower() if isinstance(text, str) else text


ListensOn = Annotated[urls.ListenAddress, NoDecode, BeforeValidator(urls.parse_address)]
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
QueueList = Annotated[tuple[ConsumedQueue, ...], NoDecode, BeforeValidator(parse_queues), Field(min_length=1)]
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_names)]
Bindings = Annotated[tuple[Binding, ...], NoDecode, BeforeValidator(parse_bindings), Field(min_length=1)]
Delays = Annotated[tuple[Duration, ...], NoDecode, BeforeValidator(_parse_delays), Field(min_length=1)]


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "database_url": urls.check_database,
    "broker_url": urls.check_broker,
    "management_url": urls.check_management,
    "http_authorization": urls.check_authorization,
    "http_secret": urls.signing_key,
}
"""The checks of the secrets. Their errors show nothing of one."""


class Settings(BaseSettings):
    """Every setting. The variable is the name in capitals behind `OUTBOXKIT_`; options of the same name win over it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    database_url: SecretStr = Field(description="postgresql+psycopg://… or sqlite:///…")
    broker_url: SecretStr = Field(
        SecretStr(defaults.BROKER_URL),
        description="amqp://… or amqps://…; for relay --destination also https://…",
    )
    management_url: SecretStr | None = Field(
        None, description="RabbitMQ's management API, for doctor: http://user:password@host:15672"
    )
    exchange: str = Field(
        "outboxkit", min_length=1, max_length=255, description="the topic exchange, declared if missing"
    )
    queue: QueueList | None = Field(None, description="a queue to consume, may be repeated; NAME:2 handles two at once")
    bind: Bindings | None = Field(None, description="take messages of this exchange and routing key, too")
    declare: bool = Field(default=True, description="declare the queue, or take it as it is")
    readers: NameList | None = Field(None, description="read messages of other systems: cloudevents, or MODULE:NAME")
    ignore: NameList | None = Field(None, description="types that need no handler, such as partner.*")
    destination: str = Field(
        DEFAULT_DESTINATION,
        min_length=1,
        max_length=255,
        description="the system that messages are for; `default` is the broker",
    )
    http_authorization: SecretStr | None = Field(None, description="Authorization header for an HTTP destination")
    http_secret: SecretStr | None = Field(None, description="signs requests to an HTTP destination: whsec_…")
    batch_size: int | None = Field(None, ge=1, le=10_000, description="messages in a transaction, at most")
    publish_timeout: Duration = Field(defaults.PUBLISH_TIMEOUT, description="how long a batch waits for confirms")
    concurrency: int = Field(defaults.CONCURRENCY, ge=1, le=MOST_AT_ONCE, description="messages in work at once")
    ordered: bool = Field(default=False, description="handle the messages of a key one after the other")
    shards: int | None = Field(None, ge=1, le=BUCKETS, description="split an --ordered queue into so many, by key")
    max_attempts: int = Field(
        defaults.ATTEMPTS, ge=1, le=ATTEMPTS_LIMIT, description="failures that make a dead letter"
    )
    max_message_bytes: int = Field(
        defaults.MAX_MESSAGE_BYTES,
        ge=1024,
        le=INFLATED_LIMIT,
        description="the largest payload that handlers get, inflated",
    )
    published_retention: Duration | None = Field(None, description="how long published messages are kept")
    inbox_retention: Duration = Field(defaults.INBOX_RETENTION, description="how long the inbox remembers")
    dead_retention: Duration | None = Field(None, description="how long dead letters are kept")
    retry_delays: Delays = Field(defaults.RETRY_DELAYS, description="before each next attempt, such as 1s,10s,1m")
    admin_port: ListensOn | None = Field(None, description="[HOST:]PORT of metrics and health")
    shutdown_timeout: Duration = Field(timedelta(seconds=25), description="how long a stop may take")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lowered)] = Field(
        "info", description="debug, info, warning or error"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: object) -> object:
        """Refuse bytes that are not UTF-8, of which Python makes lone surrogates, and NUL, which no server takes."""
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and _NOT_TEXT.search(text):
                raise ValueError("text in UTF-8, without NUL, is accepted")
        return value

    @field_validator(*_CHECKS)
    @classmethod
    def _check_secret(cls, value: SecretStr | None, about: ValidationInfo) -> SecretStr | None:
        if value is not None:
            _CHECKS[str(about.field_name)](value.get_secret_value())
        return value

    @field_validator("retry_delays")
    @classmethod
    def _check_delays(cls, value: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("ascending durations with commas between them are accepted, such as 1s,10s,1m")
        return value


SECRETS = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if SecretStr in (field.annotation, *get_args(field.annotation))
)
"""Settings whose values are never shown, and may stand in a file that `OUTBOXKIT_…_FILE` names."""


def load(options: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings: options that are not None, then the environment, then the defaults.

    Each of `SECRETS` may stand in a file instead, which a variable such as `OUTBOXKIT_DATABASE_URL_FILE` names.

    Raises:
        ConfigurationError: one line for each bad value: the variable, what was found, what is accepted.
    """
    values = {name: value for name, value in (options or {}).items() if value is not None}
    named = {name: option(name) for name in values}
    try:
        for name in sorted(SECRETS):
            _read_file(name, values, named)
        return Settings(**values)
    except ValidationError as error:
        bad = [problem for problem in error.errors() if problem["type"] != "missing"]
        lines = [_explain(problem, values, named) for problem in bad or error.errors()]
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


def _read_file(name: str, values: dict[str, Any], named: dict[str, str]) -> None:
    """Put the content of a secret's file, if one is named, among the values, and note what names it."""
    variables, as_value, as_file = environment.variables(), variable(name), variable(name) + FILE
    if name in values or as_file not in variables:
        return
    if as_value in variables:
        raise ConfigurationError(f"{as_value} and {as_file} are both set: one of them is accepted")
    values[name], named[name] = environment.read_secret(variables[as_file], named=as_file), as_file


def _accepted(problem: Any) -> str:
    """The values that are accepted, in the words of the other errors."""
    kind, bounds = problem["type"], problem.get("ctx", {})
    if kind == "literal_error":
        return f"{bounds['expected']} is accepted"
    if kind.startswith("bool_"):
        return "true or false is accepted"
    if kind.startswith("int_") or kind in ("greater_than_equal", "less_than_equal"):
        limits = Settings.model_fields[str(problem["loc"][0])].metadata
        parts = [(word, getattr(each, name)) for name, word in _LIMITS for each in limits if hasattr(each, name)]
        return " ".join(["a whole number", *(f"{word} {limit}" for word, limit in parts), "is accepted"])
    return str(problem["msg"]).removeprefix("Value error, ")


def _explain(problem: Any, values: Mapping[str, Any], named: Mapping[str, str]) -> str:
    name = str(problem["loc"][0])
    shown = named.get(name, variable(name))
    if problem["type"] == "missing":
        is_embedded = name == "database_url" and Path(defaults.EMBEDDED_FILE).exists()
        hint = (
            f". The messages of `outboxkit run` are in sqlite:///{defaults.EMBEDDED_FILE} here" if is_embedded else ""
        )
        return f"{shown} is not set: {urls.DATABASES} is accepted, there or in the file that {shown}{FILE} names{hint}"
    raw: Any = values[name] if name in values else environment.variables().get(variable(name), problem["input"])
    raw = ",".join(map(str, raw)) if isinstance(raw, list) else raw
    what = "" if name in SECRETS else f" is {raw!r}"
    accepted = _accepted(problem)
    return f"{shown}{what}{':' if what else ' cannot be used:'} {accepted}"
