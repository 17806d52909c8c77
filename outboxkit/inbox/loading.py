"""Imports modules that have handlers or readers; an import error names its line in the user's code."""

import importlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import cast

from outboxkit.codec.envelopes import READERS, Reader
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import first_line

_OURS = str(Path(__file__).parents[1])


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name, also from the current directory.

    Raises:
        ConfigurationError: there is none, or it cannot be imported; the text names the file and the line.
    """
    if "" not in sys.path:  # an installed command starts without the current directory, which has the handlers
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        hint = 'put what only a program does under `if __name__ == "__main__":`'
        raise ConfigurationError(
            f"module {name!r} cannot be imported: {_location(error)}it ends the program, with sys.exit; {hint}"
        ) from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            hint = "MODULE is a dotted name, importable from the current directory"
            raise ConfigurationError(f"no module named {error.name!r}; {hint}") from None
        text = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else first_line(error)
        raise ConfigurationError(f"module {name!r} cannot be imported: {_location(error)}{text}") from error


def load_readers(names: Sequence[str]) -> list[Reader]:
    """The readers of these names: built-in ones, or `MODULE:NAME` for one of your own.

    Raises:
        ConfigurationError: there is no such reader, or it cannot be called; the text suggests a similar name.
    """
    return [READERS[name]() if name in READERS else _own_reader(name) for name in names]


def _own_reader(name: str) -> Reader:
    module_name, _, attribute = name.partition(":")
    reader, hint = None, "" if attribute else _similar(name, READERS)
    if module_name and attribute:
        module = load_module(module_name)
        if not hasattr(module, attribute):
            similar = _similar(attribute, [each for each, value in vars(module).items() if callable(value)])
            raise ConfigurationError(
                f"OUTBOXKIT_READERS names {name!r}, and module {module_name!r} has no {attribute!r}{similar}"
            )
        reader = getattr(module, attribute)
        if isinstance(reader, type):
            hint = f"; it is a class: name an object of it, such as `{attribute.lower()} = {attribute}()` in the module"
    if not callable(reader) or isinstance(reader, type):
        known = ", ".join(READERS)
        raise ConfigurationError(
            f"OUTBOXKIT_READERS names {name!r}, which is not a reader: {known} is accepted, or MODULE:NAME. "
            f"That is a function, or an object that can be called, which takes an Envelope{hint}"
        )
    return cast("Reader", reader)


def _similar(name: str, names: Iterable[str]) -> str:
    """A question about the name that was probably meant; empty if none is similar."""
    nearest = get_close_matches(name, list(names), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _location(error: BaseException) -> str:
    """The file and line of the user's code that failed, skipping the import system and outboxkit's decorators."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}, line {error.lineno}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_foreign(frame.filename)]
    return f"{_shown(frames[-1].filename)}, line {frames[-1].lineno}: " if frames else ""


def _is_foreign(file: str) -> bool:
    return file.startswith((_OURS, "<frozen", "<string>")) or file == importlib.__file__


def _shown(file: str) -> str:
    path, folder = Path(file), Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file
