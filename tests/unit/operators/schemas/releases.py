"""Modules made of source text, as releases of a service: the same events, changed."""

import itertools
import sys
from types import ModuleType

_NUMBERS = itertools.count()
START = """
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic

from outboxkit import event, inbox_handler, upcast
"""


def release(source: str) -> ModuleType:
    """A module with this source, as if it had been imported."""
    module = ModuleType(f"release_{next(_NUMBERS)}")
    sys.modules[module.__name__] = module
    exec(START + source, vars(module))
    return module


def event_with(fields: str, *, options: str = "", before: str = "") -> type:
    """An event `Shipped` with these fields, in a release of its own."""
    body = "\n".join(f"    {line}" for line in fields.splitlines())
    found: type = release(f"{before}\n@event('Shipped'{options})\n@dataclass\nclass Shipped:\n{body}\n").Shipped
    return found
