"""Schemas of events: exported to a folder of files, one for each type and version, and compared with them.

A file, such as `schemas/OrderConfirmed/2.json`, is the JSON Schema of one version, committed beside the code. That of
an older version stays as it was, since messages of it may still arrive.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import quote, unquote

from outboxkit.codec import upcasts
from outboxkit.errors import ConfigurationError
from outboxkit.errors.failures import path_of, text_of
from outboxkit.events import declaration_of, is_event
from outboxkit.operators.schemas.compare import Difference, differences
from outboxkit.operators.schemas.json_schema import Schema, json_schema

__all__ = ["Difference", "Folder", "Schema", "SchemaChange", "differences", "events_in", "find_changes", "json_schema"]


_CURE = "Restore the file, or export it again"


class SchemaChange(NamedTuple):
    """A change of an event since its schema was exported.

    Attributes:
        text: what was found, with the field if it is about one.
        cure: what to do; empty if nothing is needed.
    """

    event: str
    text: str
    cure: str = ""
    breaking: bool = True


def events_in(modules: Iterable[ModuleType]) -> list[type]:
    """The event classes that these modules define or import, each once, sorted by their names.

    Raises:
        ConfigurationError: there is none, or two of them have a name in common.
    """
    sources = list(modules)
    classes = list(dict.fromkeys(each for module in sources for each in vars(module).values() if is_event(each)))
    by_name: dict[str, type] = {}
    for cls in classes:
        for name in declaration_of(cls).names:
            other = by_name.setdefault(name, cls)
            if other is not cls:
                raise ConfigurationError(
                    f"two event classes of these modules are {name!r}: {path_of(other)} and {path_of(cls)}. Name the "
                    "modules of one release of one service"
                )
    if not classes:
        names = ", ".join(module.__name__ for module in sources)
        raise ConfigurationError(f'no event in {names}: name the modules that have classes with @event("…")')
    return sorted(classes, key=lambda cls: declaration_of(cls).name)


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of committed schemas: `<type>/<version>.json`."""

    path: Path

    def file(self, type_: str, version: int) -> Path:
        """The file of one version; signs of the type that a file name should not have are percent-encoded."""
        name = quote(type_, safe=" +,=@")
        return self.path / (f"%2E{name[1:]}" if name.startswith(".") else name) / f"{version}.json"

    def types(self) -> list[str]:
        """The types that have a file here.

        Raises:
            ConfigurationError: the folder cannot be read.
        """
        return sorted(unquote(each.name) for each in _entries(self.path, "*") if any(_versions(each)))

    def versions(self, type_: str) -> dict[int, Schema]:
        """The schemas of a type by version.

        Raises:
            ConfigurationError: the folder cannot be read, or a file is not a JSON object.
        """
        folder = self.file(type_, 1).parent
        return {version: read_schema(folder / f"{version}.json") for version in sorted(_versions(folder))}


def read_schema(path: Path) -> Schema:
    """The JSON object in a file.

    Raises:
        ConfigurationError: it has something else, or cannot be read.
    """
    try:
        schema = json.loads(path.read_text())
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply. {_CURE}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {text_of(error)}") from error
    if not isinstance(schema, dict):
        raise ConfigurationError(f"{path} is not a JSON object. {_CURE}")
    return schema


def find_changes(events: Sequence[type], folder: Folder) -> Iterator[SchemaChange]:
    """Compare the classes with the committed schemas. A finding that is breaking names what to do.

    Raises:
        ConfigurationError: a committed file is not a JSON object, or no payload could be decoded to a class.
    """
    for cls in events:
        yield from _check_event(cls, folder)
    known = {name for cls in events for name in declaration_of(cls).names}
    for type_ in folder.types():
        if type_ not in known:
            cure = f"give its new name aliases=({type_!r},), or name its module, too. If nobody sends or reads it any "
            cure += f"more, delete {folder.file(type_, 1).parent}"
            yield SchemaChange(type_, "is exported, and no event here has this name", cure)


def _check_event(cls: type, folder: Folder) -> Iterator[SchemaChange]:
    declaration = declaration_of(cls)
    name, version = declaration.name, declaration.version
    committed = {
        number: each for type_ in reversed(declaration.names) for number, each in folder.versions(type_).items()
    }
    latest = max(committed, default=0)
    try:
        upcasts.chain_of(cls)
    except ConfigurationError as error:
        yield SchemaChange(name, str(error), "without it no consumer of the event starts")
    if version < latest:
        yield SchemaChange(
            name, f"has version {version}, and version {latest} is exported", f"write version={latest} or higher"
        )
    elif version > latest:
        yield SchemaChange(name, f"version {version} is new" if committed else "is new", breaking=False)
    else:
        raised = f"@event({name!r}, version={version + 1})"
        cure = f"raise the version, {raised}, and write @upcast({name!r}, {version}) for messages of version {version}"
        for path, text, breaking in _differences(folder.file(name, latest), committed[latest], json_schema(cls)):
            more = ", or give the field a default" if text.endswith(("required field", "is required")) else ""
            softly = "" if text.endswith("optional field") else "deploy consumers first: an old one may not read it"
            yield SchemaChange(name, f"{path} {text}".strip(), cure + more if breaking else softly, breaking)
    if committed and not folder.versions(name):
        cure = "deploy consumers first: until then its messages wait there for a handler"
        yield SchemaChange(name, f"was {', '.join(map(repr, declaration.aliases))}", cure, breaking=False)


def _differences(file: Path, old: Schema, new: Schema) -> list[Difference]:
    try:
        return differences(old, new)
    except (TypeError, AttributeError, LookupError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is damaged: {text_of(error)}. {_CURE}") from error


def _entries(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern)) if folder.is_dir() else []
    except OSError as error:  # such as a name that is too long
        raise ConfigurationError(f"{folder} cannot be read: {error.strerror}") from error


def _versions(folder: Path) -> Iterator[int]:
    for file in _entries(folder, "*.json"):
        if file.stem.isdecimal() and file.stem.isascii() and file.stem[0] != "0":
            yield int(file.stem)
