"""Compression of payloads: what goes in comes out, and a bomb takes no more memory than the limit."""

import json
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outboxkit import ConfigurationError, DecodeError, event, outbox
from outboxkit.codec import payloads
from outboxkit.codec.compression import (
    INFLATED_LIMIT,
    PIECE,
    STREAMS_LIMIT,
    Compression,
    deflate,
    inflate,
    inflated_size,
)
from outboxkit.errors import extras

KINDS: tuple[Compression, ...] = ("gzip", "zstd")


@pytest.mark.parametrize("kind", KINDS)
@given(payload=st.binary(max_size=3000))
def test_what_was_deflated_is_inflated(kind: Compression, payload: bytes):
    assert inflate(deflate(payload, kind), kind) == payload
    assert deflate(payload, kind) == deflate(payload, kind)


@given(st.data(), st.sampled_from(KINDS))
def test_damaged_bytes_are_inflated_or_refused(data: st.DataObject, kind: Compression):
    whole = bytearray(deflate(b'{"order_id": 7, "total": "9.50"}' * 40, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        inflate(bytes(whole), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_one_behind_the_other_are_one_payload(kind: Compression):
    assert inflate(deflate(b"one ", kind) + deflate(b"two", kind), kind) == b"one two"
    many = deflate(b"", kind) * (STREAMS_LIMIT + 1)
    with pytest.raises(DecodeError, match=f"more than {STREAMS_LIMIT} {kind} streams"):
        inflate(many, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_off_or_followed_by_something_else(kind: Compression):
    whole = deflate(b"whole" * 100, kind)
    for size in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DecodeError, match="cut off"):
            inflate(whole[:size], kind)
    for garbage in (b"garbage", b"\0" * 8):
        with pytest.raises(DecodeError):
            inflate(whole + garbage, kind)
    with pytest.raises(DecodeError, match="cut off"):
        inflate(b"", kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_counted_without_the_payload(kind: Compression):
    whole = random.Random(1).randbytes(2 * PIECE)
    for size in (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE):
        packed = deflate(whole[:size], kind)
        assert inflated_size(packed, kind) == size
        assert inflated_size(packed + deflate(b"two", kind), kind) == size + 3
        assert inflated_size(packed, kind, limit=1000) == min(size, 1001)
    assert inflated_size(deflate(whole, kind)[:-1], kind) <= 2 * PIECE
    assert inflated_size(b"not compressed", kind) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_is_exact(kind: Compression):
    assert len(inflate(deflate(bytes(1000), kind), kind, limit=1000)) == 1000
    assert len(inflate(deflate(bytes(500), kind) * 2, kind, limit=1000)) == 1000
    for payload in (deflate(bytes(1001), kind), deflate(bytes(501), kind) * 2):
        with pytest.raises(DecodeError, match="larger than 1000 bytes"):
            inflate(payload, kind, limit=1000)


GIGABYTE = """
import resource, sys, zlib
from backports import zstd
from outboxkit import DecodeError
from outboxkit.codec import payloads

mebibyte = bytes(2**20)
if sys.argv[1] == "gzip":
    stream = zlib.compressobj(wbits=31)
    head = stream.compress(mebibyte) + stream.flush(zlib.Z_FULL_FLUSH)
    bomb = head + (stream.compress(mebibyte) + stream.flush(zlib.Z_FULL_FLUSH)) * 1023 + stream.flush()
else:
    stream = zstd.ZstdCompressor()
    bomb = b"".join([*(stream.compress(mebibyte) for _ in range(1024)), stream.flush()])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    payloads.decode(dict, bomb, sys.argv[1])
except DecodeError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, len(bomb))
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_of_a_gigabyte_takes_little_memory(kind: Compression):
    done = subprocess.run([sys.executable, "-c", GIGABYTE, kind], capture_output=True, text=True, check=True)
    error, figures = done.stdout.splitlines()
    mebibytes, size = map(int, figures.split())
    assert error == f"the payload is larger than {INFLATED_LIMIT} bytes once its {kind} is inflated"
    assert size < 2**21
    assert mebibytes < 4 * INFLATED_LIMIT // 2**20


def test_a_frame_whose_window_is_huge_is_refused():
    options = {zstd.CompressionParameter.window_log: 27}
    stream = zstd.ZstdCompressor(options=options)
    frame = b"".join([stream.compress(b"x"), stream.compress(b"y"), stream.flush()])
    with pytest.raises(DecodeError, match="zstd"):
        inflate(frame, "zstd")


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras, "_ZSTD_MODULES", ())
    extras.zstd.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match=r"pip install outboxkit\[zstd\]"):
            deflate(b"x", "zstd")
        with pytest.raises(DecodeError, match=r"pip install outboxkit\[zstd\]"):
            inflate(b"x", "zstd")
        with pytest.raises(ConfigurationError, match=r"pip install outboxkit\[zstd\]"):
            event("Report", compress="zstd")
        assert inflate(deflate(b"x", "gzip"), "gzip") == b"x"
        with pytest.raises(DecodeError, match="not valid gzip"):
            inflate(b"x" * 20, "gzip")
    finally:
        extras.zstd.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_compressed_if_it_is_worth_it(engine: Engine, kind: Compression):
    @event("Report", compress=kind)
    @dataclass(frozen=True)
    class Report:
        text: str

    large, small = Report("é" * 5000), Report("é")
    with Session(engine) as session, session.begin():
        sent, plain = outbox.add_all(session, [large, small])
        huge = outbox.add(session, Report("x" * INFLATED_LIMIT), max_payload_bytes=2 * INFLATED_LIMIT)
    assert (sent.content_encoding, sent.content_type) == (kind, "application/json")
    assert len(sent.payload) < 200
    assert payloads.decode(Report, sent.payload, sent.content_encoding) == large
    assert (plain.content_encoding, json.loads(plain.payload)) == (None, {"text": "é"})
    assert huge.content_encoding is None  # no consumer would inflate it
