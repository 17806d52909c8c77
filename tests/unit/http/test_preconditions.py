"""If-Match and ETag over a version column."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, ForeignKey, LargeBinary, String, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.orm.exc import StaleDataError

from outboxkit.errors import ConfigurationError
from outboxkit.http import preconditions
from outboxkit.http.preconditions import check_if_match, etag
from outboxkit.http.problems import Problem


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "precondition_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(default="")
    revision: Mapped[int] = mapped_column("version_column")
    lines: Mapped[list["Line"]] = relationship()
    __mapper_args__ = {"version_id_col": revision}  # noqa: RUF012


class Line(Model):
    __tablename__ = "precondition_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))


class Tagged(Model):
    """Of any version that is text."""

    __tablename__ = "precondition_tagged"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(String(2000))
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}  # noqa: RUF012


class Binary(Model):
    __tablename__ = "precondition_binary"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[bytes] = mapped_column(LargeBinary)
    __mapper_args__ = {"version_id_col": version, "version_id_generator": False}  # noqa: RUF012


@pytest.fixture
def session() -> Iterator[Session]:
    engine: Engine = create_engine("sqlite://")
    Model.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def order(session: Session) -> Order:
    """At version 1."""
    made = Order(id=7)
    session.add(made)
    session.commit()
    return made


def refused(fields: Any, entity: object | None, **options: Any) -> tuple[int, str]:
    with pytest.raises(Problem) as raised:
        check_if_match(fields, entity, **options)
    return raised.value.status, raised.value.slug


def test_a_tag_is_the_version(session: Session, order: Order):
    assert etag(order) == '"1"'
    order.customer = "Ada"
    session.flush()
    assert etag(order) == '"2"'


def test_there_is_no_tag_for_what_is_not_written(session: Session, order: Order):
    with pytest.raises(ConfigurationError, match=r"Order has changes without a version yet: flush the session"):
        etag(Order(id=8))
    order.customer = "Ada"
    with pytest.raises(ConfigurationError, match="flush the session"):
        etag(order)
    session.flush()
    assert etag(order) == '"2"'
    order.lines.append(Line(id=1))  # changes no row of its own
    assert etag(order) == '"2"'


def test_there_is_no_tag_for_what_has_no_version():
    with pytest.raises(ConfigurationError, match="Line has no version: give its mapper one"):
        etag(Line(id=1))
    for found in (None, object(), Order, Line.__table__):
        with pytest.raises(ConfigurationError, match="is not an entity"):
            etag(found)


@pytest.mark.parametrize(
    ("entity", "tag"),
    [
        (Binary(version=b"\x00\xff"), '"00ff"'),
        (Tagged(version="a,b;W/#"), '"a,b;W/#"'),
        (Tagged(version='a"b'), None),
        (Tagged(version="a b"), None),
        (Tagged(version=""), None),
        (Tagged(version="\N{SNOWMAN}"), None),
        (Tagged(version="x" * 101), None),
        (Tagged(version="sha256:x"), None),
    ],
)
def test_a_version_of_any_kind_has_a_tag(entity: Any, tag: str | None):
    found = etag(entity)
    assert found == tag if tag else len(found) == len('"sha256:"') + 64
    check_if_match([found], entity)


def test_hashed_versions_differ():
    tags = [etag(Tagged(version=version)) for version in ('"', "'", "a b", "", "\N{SNOWMAN}")]
    tags.append(etag(Tagged(version=tags[0].strip('"'))))
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize(
    "fields",
    [
        ['"1"'],
        '"1"',
        ['"0"', '"1"'],
        [' , "a,b" ,,\t"1" , '],
        ['W/"1", "1"'],
        ['"\xe4", "1"'],
        ['"", "1"'],
        " * ",
    ],
)
def test_what_matches(order: Order, fields: Any):
    check_if_match(fields, order)


@pytest.mark.parametrize(
    "fields",
    [['"2"'], ['W/"1"'], ['W/"1", W/"1"'], ['"0,1"'], ['"*"'], ['""'], ['" 1"'.replace(" ", "!")], ['"0"', '"2"']],
)
def test_what_does_not_match(order: Order, fields: Any):
    assert refused(fields, order) == (412, "precondition-failed")
    assert refused(fields, order, required=False) == (412, "precondition-failed")


@pytest.mark.parametrize(
    "fields",
    [
        [" , "],
        ["1"],
        ['"1'],
        ['"1" "2"'],
        ['"1";a'],
        ['w/"1"'],
        ['W/ "1"'],
        ['*, "1"'],
        ["*", "*"],
        ['"1 2"'],
        ['"1\x00"'],
        ['"\N{SNOWMAN}"'],
    ],
)
def test_what_is_no_list_of_tags(order: Order, fields: Any):
    assert refused(fields, order) == (400, "precondition-invalid")
    assert refused(fields, None) == (400, "precondition-invalid")


@pytest.mark.parametrize("fields", [None, [], ()])
def test_a_missing_precondition(order: Order, fields: Any):
    assert refused(fields, order) == (428, "precondition-required")
    check_if_match(fields, order, required=False)
    check_if_match(fields, None, required=False)


@pytest.mark.parametrize("fields", [["*"], ['"1"'], ['W/"1"']])
def test_nothing_matches_what_does_not_exist(fields: Any):
    assert refused(fields, None) == (412, "precondition-failed")


@given(st.text(max_size=12) | st.text('"W/*, \t1', max_size=12))
def test_every_header_is_answered(text: str):
    order = Order(id=1, revision=1)
    try:
        check_if_match(text, order)
    except Problem as problem:
        found = problem.status
    else:
        found = 200
    assert found in (200, 400, 412)


def test_a_long_header_takes_no_time(order: Order):
    """Quadratic, it would run for hours."""
    assert refused(['"0",' * 200_000], order) == (412, "precondition-failed")
    assert refused([", " * 500_000 + "!"], order) == (400, "precondition-invalid")
    assert refused(['"' + "x" * 1_000_000], order) == (400, "precondition-invalid")


def test_who_was_overtaken_is_told_the_same(session: Session, order: Order):
    check_if_match('"1"', order)
    session.execute(update(Order.__table__).values(version_column=2))
    order.customer = "Ada"
    with pytest.raises(StaleDataError):
        session.flush()
    problem = preconditions.stale()
    assert (problem.status, problem.slug) == (412, "precondition-failed")
