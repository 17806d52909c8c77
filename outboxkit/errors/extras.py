"""Extras: the libraries that not every part of outboxkit needs, and how a missing one is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from outboxkit.errors import ConfigurationError

_OF_WORKERS = (
    *("aio_pika", "aiormq", "aiosqlite", "alembic", "greenlet", "pamqp", "psycopg", "pydantic", "pydantic_settings"),
    *("rich", "structlog", "tenacity", "typer", "yarl"),
)
_OF_METRICS = ("opentelemetry.exporter.prometheus", "opentelemetry.sdk", "prometheus_client")
EXTRAS = {
    **dict.fromkeys(("anyio", "fastapi"), "fastapi"),
    "flask": "flask",
    **dict.fromkeys(("itsdangerous", "jinja2", "markupsafe", "starlette", "uvicorn"), "console"),
    "httpx": "http",
    "opentelemetry": "otel",
    "watchfiles": "reload",
    **dict.fromkeys(_OF_METRICS, "metrics"),
    **dict.fromkeys(_OF_WORKERS, "worker"),
}
"""The extra that brings each library. A part of one library may come with another extra."""

_ZSTD_MODULES = ("compression.zstd", "backports.zstd")


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Import the libraries of an extra, which `what` needs, inside this block.

    Raises:
        ModuleNotFoundError: one is not installed; the text says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        cure = how_to_install(error)
        if cure is None:
            raise
        raise ModuleNotFoundError(f"{what} needs an extra: {cure}", name=error.name) from None


def how_to_install(error: ImportError) -> str | None:
    """The missing library of an extra, and the command that installs it; None if the error is another one."""
    if "no pq wrapper available" in str(error):
        return "psycopg found no libpq: pip install 'psycopg[binary]', or install your system's package, such as libpq5"
    library = error.name or ""
    while library not in EXTRAS and "." in library:
        library = library.rpartition(".")[0]
    extra = EXTRAS.get(library) if isinstance(error, ModuleNotFoundError) else None
    return f"{library} is not installed: pip install 'outboxkit[{extra}]'" if extra is not None else None


@cache
def zstd() -> Any:
    """The module for zstd: Python's own from 3.14 on, or its backport.

    Raises:
        ConfigurationError: neither is installed.
    """
    for name in _ZSTD_MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ConfigurationError("zstd needs Python 3.14 or the backport of its module: pip install outboxkit[zstd]")
