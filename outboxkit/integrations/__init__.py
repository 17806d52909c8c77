"""Integrations with web frameworks. Each module is imported only in services that use its framework."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(library: str) -> Iterator[None]:
    """Import the framework of an integration, an extra of the same name, inside this block.

    Raises:
        ModuleNotFoundError: it is not installed; the text says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        text = (
            f"outboxkit.integrations.{library} needs {library}, which is not installed: "
            f"pip install 'outboxkit[{library}]'"
        )
        raise ModuleNotFoundError(text, name=library) from None
