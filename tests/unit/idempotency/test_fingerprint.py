"""The fingerprint: the same for what means the same, another one for everything else."""

import json
import random
import string
import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outboxkit.idempotency import fingerprint
from outboxkit.idempotency.fingerprint import LARGEST_JSON

JSON = "application/json"
DIGEST = "e8cbde978fbfcad8ce23fb9cbcbc2c0d03315c5c665cb7ad8909b134399c9b91"
TEXTS = st.text(max_size=5) | st.sampled_from(["", "n", ".n", "1", "\ud800", "é", "\N{SNOWMAN}", "😀", '"', "\\"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
PAIRS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)


def of(body: bytes = b"", **other: Any) -> bytes:
    asked: dict[str, Any] = {
        "method": "POST",
        "template": "/orders/{id}",
        "values": {"id": "7"},
        "query": [("dry", "1")],
        "content_type": JSON,
    }
    return fingerprint(**{**asked, "body": body, **other})


def shuffled(value: Any, randomness: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(name, shuffled(found, randomness)) for name, found in value.items()]
        randomness.shuffle(items)
        return dict(items)
    return [shuffled(found, randomness) for found in value] if isinstance(value, list) else value


def escaped(text: str) -> str:
    """The JSON text with every letter inside a string escaped that is not part of an escape."""
    parts, inside, at = [], False, 0
    while at < len(text):
        character = text[at]
        step = (6 if text[at + 1] == "u" else 2) if inside and character == "\\" else 1
        if character == '"':
            inside = not inside
        letter = inside and character in string.ascii_letters
        parts.append(f"\\u{ord(character):04X}" if letter else text[at : at + step])
        at += step
    return "".join(parts)


@given(VALUES, st.randoms(use_true_random=False), st.sampled_from([None, 0, 3, "\t"]))
def test_json_that_means_the_same_is_the_same(value: Any, randomness: random.Random, indent: int | str | None):
    plain = json.dumps(value).encode()
    other = json.dumps(shuffled(value, randomness), indent=indent, separators=(" , ", " : "))
    assert of(plain) == of(f"\r\n {other} ".encode())
    try:
        readable = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate has no other form
        return
    assert of(plain) == of(readable)


@given(st.dictionaries(st.text(string.printable, max_size=9), st.text(string.printable, max_size=9), max_size=3))
def test_a_character_may_be_escaped(value: dict[str, str]):
    plain = json.dumps(value)
    assert of(plain.encode()) == of(escaped(plain).encode())
    assert json.loads(escaped(plain)) == value


@given(VALUES, VALUES)
def test_json_that_means_something_else_differs(one: Any, other: Any):
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    assert of(json.dumps(one).encode()) != of(json.dumps(other).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b"1.0"),
        (b"1.0", b"1.00"),
        (b"1e2", b"100"),
        (b"1e2", b"1E2"),
        (b"0", b"-0"),
        (b"9007199254740993", b"9007199254740992"),
        (b"1.0000000000000001", b"1.0000000000000002"),
        (b"1", b'"1"'),
        (b"1", b'{"n":"1"}'),
        (b'{".n":1}', b'{"n":1}'),
        (b"[1]", b"1"),
        (b"[[]]", b"[]"),
        (b"true", b'"true"'),
        (b"null", b""),
        (b"null", b"{}"),
        (b'{"a":1}', b'{"a":1,"b":null}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b'{"a":1,"a":1}', b'{"a":1}'),
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        (b"[NaN]", b"[ NaN]"),
        (b"[1,]", b"[1]"),
        (b"\xef\xbb\xbf1", b"1"),
        (b"[1, 2]", b"[2, 1]"),
        (b'"\xc3\xa9"', b'"e\xcc\x81"'),
    ],
)
def test_what_may_not_be_taken_for_the_same(one: bytes, other: bytes):
    assert of(one) != of(other)
    assert of(one) == of(one)


def test_a_number_may_be_longer_than_any_integer():
    assert of(b"9" * 10_000) == of(b" " + b"9" * 10_000)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_other_bodies_are_compared_by_their_bytes(one: bytes, other: bytes):
    for content_type in (JSON, "text/plain", None):
        assert of(one, content_type="text/plain") == of(one, content_type="text/plain")
        if content_type != JSON:
            assert (of(one, content_type=content_type) == of(other, content_type=content_type)) is (one == other)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json", " application/json "],
)
def test_what_is_json(content_type: str):
    assert of(b'{"a":1,"b":2}', content_type=content_type) == of(b'{ "b": 2, "a": 1 }')


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "text/json", "application/jsonx", "x/y+json"])
def test_what_is_no_json(content_type: str | None):
    assert of(b'{"a":1,"b":2}', content_type=content_type) != of(b'{"b":2,"a":1}', content_type=content_type)


def test_the_media_type_of_raw_bytes_counts_and_its_parameters_do_not():
    assert of(b"a=1", content_type="text/plain") != of(b"a=1", content_type="application/x-www-form-urlencoded")
    assert of(b"a=1", content_type="text/plain") == of(b"a=1", content_type="Text/Plain; charset=utf-8")


@pytest.mark.parametrize("levels", [99, 100, 101, 5_000, 200_000])
def test_deep_nesting_is_read_or_compared_as_bytes_but_never_fails(levels: int):
    plain, spaced = b"[" * levels + b"]" * levels, b"[ " + b"[" * (levels - 1) + b"]" * levels
    assert (of(plain) == of(spaced)) is (levels <= 100)
    assert of(plain) == of(plain)


@pytest.mark.parametrize("levels", [100, 101])
def test_brackets_in_text_are_no_nesting(levels: int):
    text = b'"' + b'[{\\"' * 500 + b'"'
    plain = b"[" * (levels - 1) + text + b"," + text + b"]" * (levels - 1)
    assert of(plain) == of(b" " + plain)


def test_the_limit_of_nesting_is_not_the_interpreters():
    """The same body, deep in a stack or not, has one fingerprint."""
    body = b"[" * 100 + b" " + b"]" * 100

    def deeper(levels: int) -> bytes:
        return deeper(levels - 1) if levels else of(body)

    assert deeper(500) == of(body) == of(b"[" * 100 + b"]" * 100)


def test_a_large_body_without_an_end_takes_no_time():
    """Quadratic, either would run for hours."""
    of(b'"' + b'\\"[' * 300_000)
    of(b"[" * 200 + b'"' * 500_001 + b"\\" * 500_001)


@given(PAIRS, PAIRS)
def test_query_parameters_count_with_their_order_within_a_name(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
):
    def means(query: list[tuple[str, str]]) -> dict[str, list[str]]:
        return {name: [value for found, value in query if found == name] for name, _ in query}

    assert (of(query=one) == of(query=other)) is (means(one) == means(other))


FRAMES = st.tuples(TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), PAIRS, st.binary(max_size=5))


@given(FRAMES, FRAMES)
def test_nothing_moves_from_one_part_to_the_next(one: Any, other: Any):
    def digest(frame: Any) -> bytes:
        method, template, values, query, body = frame
        return of(body, method=method, template=template, values=values, query=query, content_type=None)

    def normal(frame: Any) -> Any:
        method, template, values, query, body = frame
        return method, template, values, sorted(query, key=lambda pair: pair[0]), body

    assert (digest(one) == digest(other)) is (normal(one) == normal(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "POST"}, {"method": "POST/"}),
        ({"method": "POST/", "template": "orders"}, {"method": "POST", "template": "/orders"}),
        ({"values": {"a": "bc"}}, {"values": {"ab": "c"}}),
        ({"values": {"a": "1"}, "query": []}, {"values": {}, "query": [("a", "1")]}),
        ({"query": [("a", "1"), ("b", "2")]}, {"query": [("a", "1b2")]}),
        ({"query": [("a", "1"), ("a", "2")]}, {"query": [("a", "2"), ("a", "1")]}),
        ({"query": [("a", "1")], "body": b""}, {"query": [], "body": b"a1"}),
        ({"body": b"json", "content_type": None}, {"body": b"", "content_type": "json"}),
        ({"body": b"[]"}, {"body": b"[]", "content_type": None}),
    ],
)
def test_parts_are_framed(one: dict[str, Any], other: dict[str, Any]):
    assert of(**one) != of(**other)


def test_it_is_a_sha_256_digest_that_stays_the_same_in_every_version():
    """Rows of an older version are compared with it."""
    assert len(of()) == 32
    assert of(b'{"total":"19.80"}').hex() == DIGEST


def filled(unit: bytes, size: int) -> bytes:
    return b"[" + b",".join([unit] * (size // (len(unit) + 1) - 1)) + b"]"


HOSTILE = {
    "ones": lambda size: filled(b"1", size),
    "lists": lambda size: filled(b"[]", size),
    "dicts": lambda size: filled(b"{}", size),
    "objects": lambda size: filled(b'{"a":1}', size),
    "numbers": lambda size: b"[" + b",".join(b"%d" % n for n in range(10**6, 10**6 + size // 9)) + b"]",
    "names": lambda size: b"{" + b",".join(b'"%d":0' % n for n in range(size // 12)) + b"}",
    "twice": lambda size: b"{" + b",".join([b'"a":1'] * (size // 7)) + b"}",
    "deep": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "digits": lambda size: b"9" * size,
    "exponent": lambda size: b"1e" + b"9" * (size - 2),
    "brackets in a text": lambda size: b'["' + b"[{" * (size // 2 - 2) + b'"]',
    "escapes": lambda size: b'"' + b"\\u00e9" * (size // 6 - 1) + b'"',
}


@pytest.mark.parametrize("made", HOSTILE.values(), ids=HOSTILE)
def test_no_body_takes_many_times_its_own_size(made: Any):
    for size, most in ((64 * 1024, 64), (1024 * 1024, 2)):
        body = made(size)
        assert size * 0.7 < len(body) <= size
        tracemalloc.start()
        try:
            of(body)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < most * len(body), f"{peak / len(body):.0f} times {len(body)} bytes"


def test_json_beyond_256_kib_is_compared_by_its_bytes():
    for size, is_json in ((LARGEST_JSON, True), (LARGEST_JSON + 1, False)):
        one = b'{"a":1,"b":"' + b"x" * (size - 14) + b'"}'
        other = b'{"b":"' + b"x" * (size - 14) + b'","a":1}'
        assert len(one) == len(other) == size
        assert (of(one) == of(other)) is is_json
        assert of(one) == of(one)


@pytest.mark.parametrize(
    ("body", "digest"),
    [
        (
            b'[1,1.0,-0,1e5,"1",null,true,false,[],{},{"b":[{}],"a":"\\u00e9\\ud800"},"\\/\\""]',
            "a91af59c3eda5b1b60acb8412b8e6784d101053678c688ce2a08d3d403101eb9",
        ),
        (b'{"n":{".n":1},"":[[],[[]]]}', "bae6e16ea750b963b399f640f2e327e5a9a7bfa03684c9bed4acb51449be2fa9"),
    ],
)
def test_a_digest_stays_the_same_from_version_to_version(body: bytes, digest: str):
    assert of(body).hex() == digest
