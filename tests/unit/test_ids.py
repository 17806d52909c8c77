"""Message ids: new ones sort by time, derived ones never change and never collide."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxkit import ids

PARTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(), st.uuids(), st.binary(max_size=40)
)
MICROSECONDS = st.integers(0, 999_999).map(lambda number: timedelta(microseconds=number))
TUPLES = st.lists(PARTS, min_size=1, max_size=5).map(tuple)


def shape(parts: tuple[object, ...]) -> tuple[tuple[type, object], ...]:
    return tuple((type(part), part) for part in parts)


def test_a_new_id_is_a_uuid7_of_now():
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    made = ids.new()
    parsed = UUID(made)
    assert (parsed.version, parsed.variant) == (7, RFC_4122)
    assert made == str(parsed)
    made_at = ids.time_of(made)
    assert made_at is not None
    assert before <= made_at <= datetime.now(UTC)


def test_new_ids_sort_in_the_order_in_which_they_were_made():
    made = [ids.new() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.integers(0, 253_402_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)), MICROSECONDS)
def test_an_id_can_carry_a_given_time(second: datetime, fraction: timedelta):
    at = second + fraction
    made = ids.new(at=at)
    parsed = UUID(made)
    assert (parsed.version, parsed.variant) == (7, RFC_4122)
    found = ids.time_of(made)
    assert found is not None
    assert abs(found - at) <= timedelta(milliseconds=1)


FORKING = """
import os
if {library_off}:
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    import uuid_utils
    os.register_at_fork = register
from datetime import UTC, datetime
from outboxkit import ids

AT = datetime(2026, 1, 1, tzinfo=UTC)
made = set()
count = 0
for _ in range(8):
    count, made = count + 2, made | {{ids.new(), ids.new(at=AT)}}
    pipes = []
    for _ in range(4):
        reading, writing = os.pipe()
        if os.fork() == 0:
            own = [ids.new() for _ in range(200)] + [ids.new(at=AT) for _ in range(20)]
            with os.fdopen(writing, "w") as pipe:
                pipe.write(" ".join(own))
            os._exit(0)
        os.close(writing)
        pipes.append(reading)
    for reading in pipes:
        with os.fdopen(reading) as pipe:
            own = pipe.read().split()
        count, made = count + len(own), made | set(own)
        os.wait()
print(count, count - len(made))
"""


@pytest.mark.parametrize("library_off", [False, True], ids=["as it is", "without the library's own reseeding"])
def test_forked_processes_make_different_ids(library_off: bool):
    """Workers of a preloading server are such siblings; an inbox takes a second message with one id for a duplicate."""
    code = FORKING.format(library_off=library_off)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(8 * (2 + 4 * 220)), "0"]


def test_ids_of_one_moment_differ():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert len({ids.new(at=at) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "id_",
    [
        "",
        "order-7",
        "78ffe0a9-5527-5674-a1e7-3668c40699cf",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
    ],
    ids=["empty", "text", "UUIDv5", "nil", "a UUIDv7 after the year 9999"],
)
def test_other_ids_have_no_time(id_: str):
    assert ids.time_of(id_) is None


@given(st.text())
def test_any_text_may_be_asked_for_its_time(text: str):
    ids.time_of(text)


@pytest.mark.parametrize(
    ("parts", "golden"),
    [
        (("order", 42, "confirmed"), "78ffe0a9-5527-5674-a1e7-3668c40699cf"),
        (("",), "f36afcba-811c-50d2-9c30-8d9107724e9b"),
        ((0,), "a85c0b6f-5601-515f-af91-718f16c4feba"),
        ((-1,), "9d284274-d286-5bb0-947c-864a575ffb2b"),
        ((b"\x00\xff",), "1e3f4ed0-b019-5d5b-a089-1124325adf14"),
        ((UUID(int=1),), "5eb71870-25b2-597c-bd26-59ed38c7f7e6"),
        (("größe", 10**30), "83079115-da91-5db4-8908-503f5bd4c58e"),
    ],
)
def test_a_derived_id_is_the_same_for_ever(parts: tuple[ids.IdPart, ...], golden: str):
    assert ids.derive(*parts) == golden


def test_a_derived_id_is_a_uuid5():
    parsed = UUID(ids.derive("order", 1))
    assert (parsed.version, parsed.variant) == (5, RFC_4122)


@given(TUPLES, TUPLES)
def test_different_parts_give_different_ids(one: tuple[ids.IdPart, ...], other: tuple[ids.IdPart, ...]):
    assert (ids.derive(*one) == ids.derive(*other)) is (shape(one) == shape(other))


@given(TUPLES, TUPLES)
def test_parts_are_written_so_that_no_two_lists_read_alike(one: tuple[ids.IdPart, ...], other: tuple[ids.IdPart, ...]):
    assert ("".join(ids._canonical(one)) == "".join(ids._canonical(other))) is (shape(one) == shape(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), ("1",)),
        ((1, 2), (12,)),
        (("a",), (b"a",)),
        ((UUID(int=5),), (UUID(int=5).hex,)),
        (("s1:a",), ("a", "a")),
        (("a", "b"), ("b", "a")),
        (("a",), ("a", "")),
    ],
)
def test_parts_that_look_alike_are_kept_apart(one: tuple[ids.IdPart, ...], other: tuple[ids.IdPart, ...]):
    assert ids.derive(*one) != ids.derive(*other)


@pytest.mark.parametrize("part", [1.5, True, None, Decimal("1.0"), datetime(2026, 1, 1, tzinfo=UTC), ("a",), "\ud800"])
def test_what_could_read_differently_elsewhere_is_refused(part: object):
    with pytest.raises(TypeError, match=r"ids.derive"):
        ids.derive("order", part)


def test_an_id_is_derived_from_something():
    with pytest.raises(TypeError, match="at least one part"):
        ids.derive()


def test_a_derived_time_is_inherited_for_some_generations():
    first = ids.new()
    line = [first]
    for _ in range(ids.GENERATIONS + 2):
        line.append(ids.derive_from(line[-1], "H", 0))
    versions = [UUID(id_).version for id_ in line]
    assert versions == [7, *[8] * ids.GENERATIONS, 5, 5]
    assert {id_[:13] for id_ in line[: ids.GENERATIONS + 1]} == {first[:13]}
    assert [UUID(id_).variant for id_ in line] == [RFC_4122] * len(line)
    assert len(set(line)) == len(line)
    assert ids.derive_from(first, "H", 0) == line[1] != ids.derive_from(first, "H", 1)
