"""What the OpenAPI document says of an idempotent operation."""

from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params

from outboxkit import problems
from outboxkit.integrations import door

_KEY = (
    "Chosen by the client, the same with every retry of a request: 1 to 255 visible ASCII characters, bare or as a "
    "string in quotes."
)
_REFUSALS = {
    "400": "The key is missing, or it is not valid",
    "409": "A request with the key has not been answered yet, or the state of the resource forbids the request",
    "413": "The body is too large",
    "422": "The request is not valid, or the key was used for another one",
}
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "Problem details (RFC 9457)",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}


def documented(extra: dict[str, Any] | None, dependant: Dependant, rules: door.Rules) -> dict[str, Any]:
    """What is to be merged into the operation: the header, and the answers that refuse a request."""
    made = dict(extra or {})
    given = [*made.get("parameters", []), *({"name": field.alias} for field in get_flat_params(dependant))]
    if not any(str(parameter.get("name", "")).lower() == door.KEY.lower() for parameter in given):
        made["parameters"] = [*made.get("parameters", []), _parameter(rules)]
    responses: dict[str, Any] = {str(status): found for status, found in made.get("responses", {}).items()}
    for status, meaning in _REFUSALS.items():
        answer = {"description": meaning, **responses.get(status, {})}
        answer["content"] = {problems.MEDIA_TYPE: {"schema": _PROBLEM}, **answer.get("content", {})}
        if status == "409":
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}}, **answer.get("headers", {})}
        responses[status] = answer
    made["responses"] = responses
    return made


def _parameter(rules: door.Rules) -> dict[str, Any]:
    return {
        "name": door.KEY,
        "in": "header",
        "required": rules.required,
        "description": _KEY,
        "schema": {"type": "string", "minLength": 1, "title": door.KEY},
    }
