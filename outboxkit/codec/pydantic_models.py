"""pydantic classes: the names of their fields in a payload, and the check for fields that cannot travel.

pydantic writes a field under its `serialization_alias` and reads it under its `validation_alias`. The class must read
every payload that it wrote, also one that an earlier version wrote under the fields' own names.
"""

import sys
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any, NamedTuple

from outboxkit.errors import ConfigurationError
from outboxkit.events import is_called_outside, is_pydantic


class Names(NamedTuple):
    """The names under which a class, and its nested classes, write and read their fields.

    Attributes:
        by_alias: whether fields are written under their aliases; None if none has one, and the class's own settings
            count.
        or_name: whether a field with an alias is also read under its own name.
    """

    by_alias: bool | None
    or_name: bool


def write_pydantic(event: Any) -> bytes:
    """The event as JSON. A user's own `model_dump_json` is called as it is."""
    cls: Any = type(event)
    names = names_of(cls)
    if not hasattr(cls, "model_dump_json"):
        return bytes(_adapter(cls).dump_json(event, by_alias=names.by_alias))
    if names.by_alias is None or cls.model_dump_json is not sys.modules["pydantic"].BaseModel.model_dump_json:
        return bytes(event.model_dump_json().encode())
    return bytes(event.model_dump_json(by_alias=names.by_alias).encode())


def plain_pydantic(event: Any, **options: Any) -> Any:
    """The event in plain Python objects, with the same names as `write_pydantic`."""
    cls: Any = type(event)
    names = names_of(cls)
    if not hasattr(cls, "model_dump"):
        return _adapter(cls).dump_python(event, by_alias=names.by_alias, **options)
    return (
        event.model_dump(**options) if names.by_alias is None else event.model_dump(**options, by_alias=names.by_alias)
    )


_MOST_ERRORS = 1000
"""The most errors of a payload that are read. pydantic keeps all of them, and their text may be far longer than it."""


def read_pydantic(cls: Any, payload: bytes) -> Any:
    """The event in these bytes."""
    options = {"by_alias": True, "by_name": True} if names_of(cls).or_name else {}
    validate = cls.model_validate_json if hasattr(cls, "model_validate_json") else _adapter(cls).validate_json
    try:
        return validate(payload, **options)
    except sys.modules["pydantic"].ValidationError as error:
        if error.error_count() <= _MOST_ERRORS:
            raise
    raise ValueError(f"it has more than {_MOST_ERRORS} errors")


@cache
def names_of(cls: type) -> Names:
    """The names of a class's fields in payloads: the aliases, if the class reads them as well.

    A class with a destination of its own always writes its aliases.
    """
    fields = [(model, name, field) for model in models_within(cls) for name, field in _fields(model).items()]
    aliases = {(model, name): _aliases(field.validation_alias) for model, name, field in fields}
    if not any(aliases.values()) and not any(field.serialization_alias for _, _, field in fields):
        return Names(by_alias=None, or_name=False)
    or_name = not any(
        name in aliases[model, other] for model, name, _ in fields for other in _fields(model) if other != name
    )
    readable = all(
        field.serialization_alias in aliases[model, name]
        or ((field.serialization_alias or name) == name and (or_name or not aliases[model, name]))
        for model, name, field in fields
    )
    return Names(by_alias=readable or is_called_outside(cls), or_name=or_name)


def check_written(cls: Any) -> None:
    """Refuse a class that writes another value than its instances hold.

    Raises:
        ConfigurationError: a field is a secret, which pydantic writes as stars.
    """
    _complete(cls)
    for model in models_within(cls):
        for name, field in _fields(model).items():
            if _has_secret(field.annotation) and not _has_serializer(model, name, field):
                raise ConfigurationError(
                    f"{model.__qualname__}.{name} is a secret, which pydantic writes as stars. Leave it out of the "
                    "event, or give it a serializer of its own that writes the value"
                )


def _complete(cls: Any) -> None:
    try:
        if hasattr(cls, "model_rebuild"):
            cls.model_rebuild()
        else:
            _adapter(cls)
    except Exception as error:
        raise ConfigurationError(
            f"the annotations of {cls.__qualname__} cannot be resolved: {' '.join(str(error).split())}"
        ) from error


@cache
def _adapter(cls: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(cls)


def _fields(cls: Any) -> dict[str, Any]:
    return getattr(cls, "__pydantic_fields__", None) or {}


def models_within(cls: Any) -> list[Any]:
    """The class, and every pydantic class that its fields name at any depth."""
    classes: dict[Any, None] = {}
    waiting = [cls]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and annotation not in classes:
            if is_pydantic(annotation):
                classes[annotation] = None
                waiting += [field.annotation for field in _fields(annotation).values()]
            elif _is_record(annotation):
                classes[annotation] = None
                waiting += _hints(annotation)
        else:
            waiting += _inside(annotation)
    return list(filter(is_pydantic, classes))


def _is_record(cls: type) -> bool:
    return is_dataclass(cls) or typing.is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _hints(cls: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(cls).values())
    except Exception:  # noqa: BLE001 - pydantic itself reports a wrong annotation
        return []


def _inside(annotation: Any) -> Iterator[Any]:
    """The parts of an annotation: `list[X]`, `X | None`, `Annotated[X, ...]`, `type Y = X`."""
    if hasattr(annotation, "__value__"):
        yield annotation.__value__
    yield from typing.get_args(annotation)


def _aliases(alias: Any) -> set[str]:
    """The names that a validation alias accepts, without paths into other values."""
    choices = getattr(alias, "choices", [alias])
    return {choice for choice in choices if isinstance(choice, str)} if alias is not None else set()


def _has_secret(annotation: Any) -> bool:
    pydantic = sys.modules["pydantic"]
    secrets = (pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret)
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, secrets):
        return True
    return any(map(_has_secret, _inside(annotation)))


def _has_serializer(model: Any, name: str, field: Any) -> bool:
    declared = getattr(model, "__pydantic_decorators__", None)
    if declared is not None and (
        declared.model_serializers
        or any({name, "*"} & set(each.info.fields) for each in declared.field_serializers.values())
    ):
        return True
    return any(type(each).__name__.endswith("Serializer") for each in field.metadata)
