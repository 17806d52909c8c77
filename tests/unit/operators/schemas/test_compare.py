"""Which changes of a class keep its messages from being read, and which do not."""

import pytest

from outboxkit.operators.schemas import differences, json_schema
from tests.unit.operators.schemas.releases import event_with, release

LINE = "@dataclass\nclass Line:\n    sku: str\n    count: int = 1\n"
ENUM = "class Colour(Enum):\n    RED = 'red'\n    BLUE = 'blue'\n"
TAGS = "class A(msgspec.Struct, tag=True):\n    x: int\nclass B(msgspec.Struct, tag=True):\n    y: int\n"
SELF = "number: int\nparent: 'Shipped | None' = None"


def found(old: str, new: str, before: str = LINE + TAGS, before_new: str | None = None) -> list[tuple[str, str, bool]]:
    one = json_schema(event_with(old, before=before))
    other = json_schema(event_with(new, before=before if before_new is None else before_new))
    return [tuple(each) for each in differences(one, other)]


@pytest.mark.parametrize(
    ("old", "new", "path", "text"),
    [
        ("a: int\nb: int", "a: int", "b", "was removed"),
        ("a: int\nb: int = 1", "a: int", "b", "was removed"),
        ("a: int", "a: int\nb: int", "b", "is a new required field"),
        ("a: int = 1", "b: int\na: int = 1", "b", "is a new required field"),
        ("a: int = 1", "a: int", "a", "was optional, and is required"),
        ("a: int", "a: str", "a", "was integer, and is string"),
        ("a: int", "a: float", "a", "was integer, and is number"),
        ("a: str", "a: datetime", "a", "was string, and is string (date-time)"),
        ("a: UUID", "a: str", "a", "was string (uuid), and is string"),
        ("a: Any", "a: int", "a", "was any value, and is integer"),
        ("a: int | None", "a: int", "a", "no longer accepts null"),
        ("a: list[int]", "a: list[str]", "a[]", "was integer, and is string"),
        ("a: list[int]", "a: int", "a", "was array, and is integer"),
        ("a: dict[str, int]", "a: dict[str, str]", "a{}", "was integer, and is string"),
        ("a: tuple[int, str]", "a: tuple[int, int]", "a[1]", "was string, and is integer"),
        ("a: Literal['x', 'y']", "a: Literal['x']", "a", "no longer accepts 'y'"),
        ("a: str", "a: Literal['x']", "a", "was string, and is 'x'"),
        ("a: Literal['x']", "a: int", "a", "was 'x', and is integer"),
        ("line: Line | None", "line: Line", "line", "no longer accepts null"),
        ("u: A | B", "u: A", "u", "no longer accepts B"),
        (SELF, SELF.replace("number: int", "number: str"), "number", "was integer, and is string"),
        ("a: int", "a: Annotated[int, msgspec.Meta(ge=1)]", "a", "has minimum 1 now"),
        ("a: Annotated[str, msgspec.Meta(max_length=9)]", "a: Annotated[str, msgspec.Meta(max_length=5)]", "a",
         "had maxLength 9, and has 5"),
        ("a: Annotated[str, msgspec.Meta(pattern='a')]", "a: Annotated[str, msgspec.Meta(pattern='b')]", "a",
         "had pattern 'a', and has 'b'"),
    ],
)  # fmt: skip
def test_a_change_that_breaks_consumers_is_named(old: str, new: str, path: str, text: str):
    assert found(old, new) == [(path, text, True)]


@pytest.mark.parametrize(
    ("old", "new", "path", "text"),
    [
        ("a: int", "a: int\nb: int = 1", "b", "is a new optional field"),
        ("a: int", "a: int = 1", "a", "was required, and is optional"),
        ("a: int", "a: int | None", "a", "also accepts null"),
        ("a: int | None", "a: int | str | None", "a", "also accepts string"),
        ("a: int", "a: Any", "a", "also accepts any value"),
        ("a: Literal['x']", "a: Literal['x', 'y']", "a", "also accepts 'y'"),
        ("a: Literal['x']", "a: str", "a", "also accepts string"),
        ("u: A", "u: A | B", "u", "also accepts B"),
        ("a: Annotated[int, msgspec.Meta(ge=1)]", "a: int", "a", "no longer has minimum 1"),
        ("a: Annotated[int, msgspec.Meta(ge=5)]", "a: Annotated[int, msgspec.Meta(ge=1)]", "a",
         "had minimum 5, and has 1"),
        ("a: Annotated[int, msgspec.Meta(le=5)]", "a: Annotated[int, msgspec.Meta(le=7)]", "a",
         "had maximum 5, and has 7"),
    ],
)  # fmt: skip
def test_a_wider_schema_is_told_and_breaks_nothing(old: str, new: str, path: str, text: str):
    assert found(old, new) == [(path, text, False)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a: int\nb: str", "b: str\na: int"),
        ("a: int = 1", "a: int = 2"),
        ("a: int | str | None", "a: None | str | int"),
        ("a: list", "a: list[Any]"),
        (SELF, SELF),
    ],
)
def test_the_same_in_other_words_is_no_difference(old: str, new: str):
    assert found(old, new) == []


def test_changes_in_nested_classes_have_their_paths():
    new = LINE.replace("sku: str", "sku: int").replace("count: int = 1", "colour: str")
    assert found("lines: list[Line]", "lines: list[Line]", LINE, new) == [
        ("lines[].count", "was removed", True),
        ("lines[].colour", "is a new required field", True),
        ("lines[].sku", "was string, and is integer", True),
    ]


def test_a_member_of_a_union_is_compared_with_its_successor():
    new = LINE.replace("sku: str", "sku: int")
    assert found("line: Line | None", "line: Line | None", LINE, new) == [
        ("line.sku", "was string, and is integer", True)
    ]


def test_classes_that_contain_one_another_in_unions_are_compared_in_no_time():
    """Each way through them all would be one of thousands of millions."""
    names = [f"N{number}" for number in range(15)]
    nodes = "".join(
        f"class {name}(msgspec.Struct, tag=True):\n    inner: 'list[{' | '.join(names)}]'\n" for name in names
    )
    field = f"root: {' | '.join(names)}"
    assert found(field, field, nodes) == []
    more = nodes.replace(
        "class N7(msgspec.Struct, tag=True):\n", "class N7(msgspec.Struct, tag=True):\n    more: int\n"
    )
    assert found(field, field, nodes, more) == [("root.more", "is a new required field", True)]


def test_a_member_of_a_union_without_a_successor_is_missing():
    assert found("a: int | str", "a: int | UUID") == [
        ("a", "no longer accepts string", True),
        ("a", "also accepts string (uuid)", False),
    ]


def test_an_enum_has_its_values():
    assert found("c: Colour", "c: Colour", ENUM, ENUM.replace("blue", "green")) == [
        ("c", "no longer accepts 'blue'", True),
        ("c", "also accepts 'green'", False),
    ]


def test_tagged_unions_go_by_their_tags():
    assert found("u: A | B", "u: A | B", TAGS, TAGS.replace("y: int", "y: int = 0\n    z: int = 0")) == [
        ("u.y", "was required, and is optional", False),
        ("u.z", "is a new optional field", False),
    ]
    wrong = found("u: A | B", "u: A | B", TAGS, TAGS.replace("y: int", "y: str"))
    assert wrong == [("u.y", "was integer, and is string", True)]


def test_a_class_that_refuses_unknown_fields_breaks_its_producers():
    source = "@event('E')\nclass E(msgspec.Struct{}):\n    a: int\n"
    one, other = (release(source.format(more)).E for more in ("", ", forbid_unknown_fields=True"))
    assert [tuple(each) for each in differences(json_schema(one), json_schema(other))] == [
        ("", "refuses fields that it does not know", True)
    ]
    assert differences(json_schema(other), json_schema(one)) == []


def test_fixed_tuples_have_their_length():
    assert found("a: tuple[int, int]", "a: tuple[int, int, int]")[-1] == (
        "a",
        "had 2 items of types of their own, and has 3",
        True,
    )


def test_a_value_and_a_list_of_one_value_are_the_same():
    one, listed = ({"type": "object", "properties": {"a": each}} for each in ({"const": "x"}, {"enum": ["x"]}))
    assert differences(one, listed) == differences(listed, one) == []
    other = {"type": "object", "properties": {"a": {"const": "y"}}}
    assert next(tuple(each) for each in differences(one, other))[:2] == ("a", "was 'x', and is 'y'")


def test_an_alternative_that_is_the_choice_itself_adds_nothing():
    circle = {"$defs": {"A": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"}
    assert differences(circle, {"type": "integer"}) == differences({"type": "integer"}, circle) == []
