"""A folder of committed schemas, and what a check of the classes finds."""

import json
from pathlib import Path

import pytest

from outboxkit import ConfigurationError
from outboxkit.events import declaration_of
from outboxkit.operators.schemas import Folder, SchemaChange, events_in, find_changes, json_schema
from tests.unit.operators.schemas.releases import event_with, release

UPCAST = "@upcast('Shipped', 1)\ndef change(document):\n    return {'number': str(document['number'])}\n"
RAISE = "raise the version, @event('Shipped', version=2), and write @upcast('Shipped', 1) for messages of version 1"
OR_DEFAULT = ", or give the field a default"
FIRST = "deploy consumers first: an old one may not read it"
BIND = "deploy consumers first: until then its messages wait there for a handler"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "schemas")


def export(folder: Folder, *classes: type) -> None:
    for cls in classes:
        declaration = declaration_of(cls)
        file = folder.file(declaration.name, declaration.version)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(json_schema(cls)))


def test_what_is_as_it_was_exported_has_no_findings(folder: Folder):
    cls = event_with("number: int")
    assert list(find_changes([cls], folder)) == [SchemaChange("Shipped", "is new", breaking=False)]
    export(folder, cls)
    assert list(find_changes([cls], folder)) == []


@pytest.mark.parametrize(
    ("new", "finding"),
    [
        ("number: str", SchemaChange("Shipped", "number was integer, and is string", RAISE)),
        ("a: int", SchemaChange("Shipped", "number was removed", RAISE)),
        ("number: int\nb: int", SchemaChange("Shipped", "b is a new required field", RAISE + OR_DEFAULT)),
        ("number: int\nb: int = 1", SchemaChange("Shipped", "b is a new optional field", breaking=False)),
        ("number: int | None", SchemaChange("Shipped", "number also accepts null", FIRST, breaking=False)),
    ],
)  # fmt: skip
def test_a_change_is_found_with_its_cure(folder: Folder, new: str, finding: SchemaChange):
    export(folder, event_with("number: int"))
    assert finding in list(find_changes([event_with(new)], folder))


def test_a_new_version_needs_its_upcast(folder: Folder):
    export(folder, event_with("number: int"))
    new = event_with("number: str", options=", version=2", before=UPCAST)
    assert list(find_changes([new], folder)) == [SchemaChange("Shipped", "version 2 is new", breaking=False)]
    bare, told = find_changes([event_with("number: str", options=", version=2")], folder)
    assert bare.breaking
    assert bare.text.startswith("the upcast of 'Shipped' from version 1 to 2 is missing")
    assert not told.breaking
    export(folder, new)
    assert list(find_changes([new], folder)) == []


def test_a_rename_is_told_beside_a_new_version(folder: Folder):
    export(folder, event_with("number: int"))
    renamed = f"{UPCAST}@event('Sent', version=2, aliases=('Shipped',))\n@dataclass\nclass Sent:\n    number: str\n"
    assert list(find_changes([release(renamed).Sent], folder)) == [
        SchemaChange("Sent", "version 2 is new", breaking=False),
        SchemaChange("Sent", "was 'Shipped'", BIND, breaking=False),
    ]


def test_an_exported_version_is_not_taken_back(folder: Folder):
    export(folder, event_with("number: str", options=", version=2", before=UPCAST))
    (finding,) = find_changes([event_with("number: int")], folder)
    assert finding == SchemaChange("Shipped", "has version 1, and version 2 is exported", "write version=2 or higher")


def test_a_rename_needs_an_alias(folder: Folder):
    export(folder, event_with("number: int"))
    renamed = "@event('Sent'{})\n@dataclass\nclass Sent:\n    number: {}\n"
    gone = [each for each in find_changes([release(renamed.format("", "int")).Sent], folder) if each.breaking]
    assert [(each.event, each.text) for each in gone] == [("Shipped", "is exported, and no event here has this name")]
    assert "aliases=('Shipped',)" in gone[0].cure
    alias = ", aliases=('Shipped',)"
    assert list(find_changes([release(renamed.format(alias, "int")).Sent], folder)) == [
        SchemaChange("Sent", "was 'Shipped'", BIND, breaking=False)
    ]
    changed = next(find_changes([release(renamed.format(alias, "str")).Sent], folder))
    assert (changed.event, changed.text, changed.breaking) == ("Sent", "number was integer, and is string", True)


@pytest.mark.parametrize("type_", ["a/b", "..", ".", ".git", "a\\b", "é", "CON:", "a b+c,d", "%2E"])
def test_every_type_has_a_folder_of_its_own_inside(folder: Folder, type_: str):
    file = folder.file(type_, 1)
    assert file.parent.parent == folder.path
    assert file.resolve().is_relative_to(folder.path.resolve() / file.parent.name)
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert folder.types() == [type_]
    assert folder.versions(type_) == {1: {}}


def test_other_files_are_left_alone(folder: Folder):
    assert (folder.types(), folder.versions("Shipped")) == ([], {})
    export(folder, event_with("number: int"))
    (folder.path / "notes.json").write_text("{}")
    (folder.path / "notes").mkdir()
    for name in ("01.json", "x.json", "2.txt", "٢.json"):
        (folder.path / "Shipped" / name).write_text("no")
    assert folder.types() == ["Shipped"]
    assert list(folder.versions("Shipped")) == [1]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[1]", "is not a JSON object. Restore the file, or export it again"),
        ("{", "cannot be read: "),
        ("[" * 100_000, "is nested too deeply. Restore the file, or export it again"),
        ('{"type": "object", "properties": 5}', "is damaged: .*Restore the file, or export it again"),
        ('{"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}', r".*a \$ref leads in a circle.*Restore"),
    ],
)
def test_a_file_that_is_no_schema_is_named(folder: Folder, text: str, error: str):
    cls = event_with("number: int")
    export(folder, cls)
    folder.file("Shipped", 1).write_text(text)
    with pytest.raises(ConfigurationError, match=rf"1\.json:? {error}"):
        list(find_changes([cls], folder))


def test_events_are_those_that_modules_define_or_import():
    one = release("@event('B')\n@dataclass\nclass B:\n    a: int\nAgain = B\n@dataclass\nclass No:\n    a: int\n")
    other = release(f"from {one.__name__} import B\n@event('A')\n@dataclass\nclass A:\n    a: int\n")
    assert events_in([one, other]) == [other.A, one.B]
    with pytest.raises(ConfigurationError, match=r"no event in release_\d+: name the modules"):
        events_in([release("")])


@pytest.mark.parametrize("options", ["'A'", "'B', aliases=('A',)"])
def test_two_classes_of_one_name_are_not_one_service(options: str):
    one = release("@event('A')\n@dataclass\nclass A:\n    a: int\n")
    other = release(f"@event({options})\n@dataclass\nclass A:\n    a: int\n")
    with pytest.raises(ConfigurationError, match="two event classes of these modules are 'A'"):
        events_in([one, other])
