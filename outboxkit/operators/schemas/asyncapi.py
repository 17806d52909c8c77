"""AsyncAPI 3.0 document of a service: the events that it sends, and those that its handlers receive, over AMQP.

https://www.asyncapi.com/docs/reference/specification/v3.0.0, and version 0.3.0 of its AMQP bindings. Pure.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from outboxkit.codec.headers import CAUSATION, KEY, VERSION
from outboxkit.events import Declaration, declaration_of
from outboxkit.inbox import Handler
from outboxkit.message import DEFAULT_DESTINATION
from outboxkit.operators.schemas.json_schema import DEFINITIONS, EVENT, Schema, changed_schemas

OF_ASYNCAPI, BINDING = "3.0.0", {"bindingVersion": "0.3.0"}


class About(NamedTuple):
    """A service: its title and version in the document, and its exchange."""

    title: str
    version: str
    exchange: str


def asyncapi(
    about: About, events: Sequence[type], handlers: Sequence[Handler], schemas: dict[str, dict[int, Schema]]
) -> dict[str, Any]:
    """The document. A service sends each event that it has no handler for, and those that are named as a reply.

    Args:
        about: the service.
        events: the event classes of the service.
        handlers: its handlers.
        schemas: the schemas of each type by version, also those of older versions.
    """
    declarations = [declaration_of(cls) for cls in events]
    received = {type_ for handler in handlers for type_ in handler.message_types}
    replies = {each.reply for each in declarations}
    operations: dict[str, Any] = {}
    for each in declarations:
        if each.name not in received or each.name in replies:
            operations[f"send.{_key(each.name)}"] = _send(each)
    for handler in handlers:
        for type_ in handler.message_types:
            operations[f"receive.{_key(handler.name)}.{_key(type_)}"] = _receive(type_, handler)
    messages = {
        _message_key(type_, version): _message(type_, version)
        for type_, versions in schemas.items()
        for version in versions
    }
    routes = {type_: each for each in declarations for type_ in each.names if type_ == each.name or type_ in received}
    return {
        "asyncapi": OF_ASYNCAPI,
        "info": {"title": about.title, "version": about.version},
        "defaultContentType": "application/json",
        "channels": {_key(type_): _channel(type_, each, about, schemas) for type_, each in routes.items()},
        "operations": operations,
        "components": {"messages": messages, "schemas": _components(schemas)},
    }


def _channel(
    type_: str, declaration: Declaration, about: About, schemas: dict[str, dict[int, Schema]]
) -> dict[str, Any]:
    keys = [_message_key(type_, version) for version in schemas.get(type_, {})]
    channel = {"messages": {key: {"$ref": f"#/components/messages/{key}"} for key in keys}}
    if declaration.destination != DEFAULT_DESTINATION:
        text = f"Requests of destination {declaration.destination!r}, whose relay knows the URL."
        return {"address": None, "description": text, **channel}
    exchange = {"name": about.exchange, "type": "topic", "durable": True, "autoDelete": False}
    binding = {"is": "routingKey", "exchange": exchange, **BINDING}
    return {"address": type_, **channel, "bindings": {"amqp": binding}}


def _send(declaration: Declaration) -> dict[str, Any]:
    key = _key(declaration.name)
    message = f"#/channels/{key}/messages/{_message_key(declaration.name, declaration.version)}"
    operation = {"action": "send", "channel": {"$ref": f"#/channels/{key}"}, "messages": [{"$ref": message}]}
    if declaration.destination != DEFAULT_DESTINATION:
        return operation
    return {**operation, "bindings": {"amqp": {"deliveryMode": 2, "mandatory": True, "timestamp": True, **BINDING}}}


def _receive(type_: str, handler: Handler) -> dict[str, Any]:
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{_key(type_)}"},
        "title": handler.name,
        "bindings": {"amqp": {"ack": True, **BINDING}},
    }


def _message(type_: str, version: int) -> dict[str, Any]:
    headers: dict[str, Any] = {
        KEY: {"type": "string", "description": "the ordering key"},
        CAUSATION: {"type": "string", "description": "the id of the message that caused this one"},
    }
    required = {}
    if version != 1:
        headers[VERSION] = {"type": "integer", "const": version}
        required = {"required": [VERSION]}
    return {
        "name": type_,
        "title": f"{type_}, version {version}",
        "contentType": "application/json",
        "headers": {"type": "object", "properties": headers, **required},
        "payload": {"$ref": f"#/components/schemas/{_message_key(type_, version)}"},
        "bindings": {"amqp": {"messageType": type_, **BINDING}},
    }


def _components(schemas: dict[str, dict[int, Schema]]) -> dict[str, Schema]:
    """The schemas, and those nested in them, each under a name of its own."""
    components: dict[str, Schema] = {}
    for type_, versions in schemas.items():
        for version, schema in versions.items():
            prefix = _message_key(type_, version)

            def change(each: Schema, prefix: str = prefix) -> Schema:
                return _as_draft_7(each, prefix)

            root = {name: each for name, each in schema.items() if name not in ("$schema", EVENT, "$defs")}
            components[prefix] = changed_schemas(root, change)
            for name, nested in schema.get("$defs", {}).items():
                components[f"{prefix}.{_key(name)}"] = changed_schemas(nested, change)
    return components


def _as_draft_7(schema: Schema, prefix: str) -> Schema:
    """The schema in the words of AsyncAPI, which are those of draft 7: other tuples, and no `discriminator` object."""
    draft_7 = {name: value for name, value in schema.items() if name != "discriminator"}
    if isinstance(reference := draft_7.get("$ref"), str) and reference.startswith(DEFINITIONS):
        draft_7["$ref"] = f"#/components/schemas/{prefix}.{_key(reference.removeprefix(DEFINITIONS))}"
    if "prefixItems" in draft_7:
        draft_7["additionalItems"] = draft_7.get("items", True)
        draft_7["items"] = draft_7.pop("prefixItems")
    return draft_7


def _message_key(type_: str, version: int) -> str:
    return f"{_key(type_)}.{version}"


def _key(name: str) -> str:
    """The name as a key of components, which may have letters, digits, `.`, `-` and `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda sign: f"_{ord(sign[0]):x}_", name)
