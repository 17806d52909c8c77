"""The ids of missing messages: a few in memory, all in a file for each handler."""

import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

from outboxkit.errors import ConfigurationError

FEW = 5
"""Ids of a handler that a command has as options; if there are more, it names a file."""


class MissingIds:
    """Takes the ids of missing messages, whatever their number: beyond a few they are written as they come.

    Args:
        folder: the folder of the files. None: a new temporary folder, made for the first file.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._few: dict[str, list[str]] = {}
        self._files: dict[str, tuple[Path, IO[str]]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is left, and close the files."""
        self._open.close()

    def add(self, handler: str, id_: str) -> None:
        """Take an id.

        Raises:
            ConfigurationError: the folder cannot be written.
        """
        few = self._few.setdefault(handler, [])
        if len(few) < FEW:
            few.append(id_)
            return
        if handler not in self._files:
            self._files[handler] = self._begin(handler)
            self._files[handler][1].writelines(f"{each}\n" for each in few)
        self._files[handler][1].write(f"{id_}\n")

    def few(self, handler: str) -> list[str]:
        """All ids of a handler, if they are few; else none."""
        return [] if handler in self._files else self._few.get(handler, [])

    def file(self, handler: str) -> str | None:
        """The file with the ids of a handler; None if they are few."""
        return str(self._files[handler][0]) if handler in self._files else None

    def _begin(self, handler: str) -> tuple[Path, IO[str]]:
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="outboxkit-missing-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9._-]", "_", handler)[:80]
            path = self._folder / f"{len(self._files) + 1}-{name}.txt"
            return path, self._open.enter_context(path.open("w"))
        except OSError as error:
            raise ConfigurationError(
                f"--save is {str(self._folder)!r}: it cannot be written ({error.strerror}); a folder is accepted"
            ) from None
