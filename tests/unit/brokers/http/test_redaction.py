"""Secrets in text from outside, in every way in which it may write them."""

import base64
import html
import json
import string
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outboxkit.brokers.http.call import LONGEST, Redaction, parts_of

PATH = "/services/T000/b%20c/SECRET-TOKEN_of.the&hook"
QUERY = "key=QUERY%2FSECRET&of=shop&x=1"
DECODED = "/services/T000/b c/SECRET-TOKEN_of.the&hook"
HIDE = Redaction(parts_of(PATH, QUERY))


def upper_and_lower(text: str) -> str:
    return quote(quote(text, safe=""), safe="").lower()


WAYS = [
    str,
    str.lower,
    str.upper,
    lambda text: quote(text, safe="/?=&"),
    lambda text: quote(text, safe=""),
    upper_and_lower,
    quote_plus,
    html.escape,
    lambda text: html.escape(html.escape(text)).replace("/", "&amp;#x2F;"),
    lambda text: text.replace("/", "&#47;").replace("E", "&#x00045;"),
    lambda text: text.replace("/", "&sol;").replace("=", "&equals;"),
    lambda text: json.dumps(text).replace("/", "\\/"),
    lambda text: json.dumps(json.dumps(text)),
    lambda text: "".join(f"\\u{ord(each):04x}" for each in text),
    lambda text: "".join(f"\\x{ord(each):02X}" for each in text),
    lambda text: repr(text.encode()),
    lambda text: base64.b64encode(text.encode()).decode(),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("url", [f"{PATH}?{QUERY}", f"{DECODED}?key=QUERY/SECRET&of=shop&x=1"], ids=["raw", "decoded"])
def test_the_usual_404_shows_nothing_of_the_url_in_any_way_of_writing_it(way: int, url: str):
    written = WAYS[way](url)
    texts = [f"Cannot POST {written}", f"<pre>Cannot POST {written}</pre>", f'{{"path":"{written}","no":1}}']
    for text in texts:
        shown = HIDE(text).lower()
        found = [each for each in ("secret", "t000", "token", "query", "services", "hook") if each in shown]
        assert not found, shown
        assert "***" in shown
        assert not any(WAYS[way](each).strip("\"'")[3:-3].lower() in shown for each in ("SECRET-TOKEN", "QUERY/SECRET"))


def test_parts_of_a_url_are_hidden_alone_and_cut_and_what_is_said_beside_them_is_not():
    assert HIDE("no route for SECRET-TOKEN_of.the&hook here") == "no route for *** here"
    assert HIDE("hook T000 is gone; T0001 is not") == "hook *** is gone; T0001 is not"
    assert HIDE("POST /services/T000/b c/SECRE…") == "POST ***…"
    assert HIDE("…ET-TOKEN_of.the&hook?key=QUERY/S…") == "…***…"
    assert HIDE("https://hooks.example/services/T000/b%20c/x") == "https://hooks.example***x"
    assert (
        HIDE('{"error": "over the limit of the card", "id": 17}') == '{"error": "over the limit of the card", "id": 17}'
    )


def test_a_root_without_a_query_hides_nothing():
    assert Redaction(parts_of("/", ""))("POST / is not 100% a+b &amp; \\n") == "POST / is not 100% a+b &amp; \\n"


def test_nothing_of_a_secret_is_left_where_the_text_is_cut():
    for before in range(LONGEST - 200, LONGEST + 10, 7):
        shown = HIDE("x" * before + upper_and_lower(PATH) * 3)
        assert "SECRET" not in shown.upper()
        assert "services" not in shown


@given(
    st.text(string.ascii_letters + string.digits + "-_.~%/+&=<>\"' ", min_size=8, max_size=40),
    st.sampled_from(WAYS[:1] + WAYS[3:]),
    st.text(max_size=20),
)
@example("00000~00", lambda text: base64.b64encode(text.encode()).decode(), "")
@example("00000+00", lambda text: base64.b64encode(text.encode()).decode(), "")
@example("00000~00", lambda text: base64.urlsafe_b64encode(text.encode()).decode(), "")
def test_any_secret_is_hidden_in_any_way(secret: str, way: object, around: str):
    plain = secret
    for each in (around, ""):
        shown = Redaction([quote(plain, safe="")])(f"{each} {way(plain)} {each}")  # type: ignore[operator]
        assert "***" in shown


@given(st.text(), st.lists(st.text(max_size=30), max_size=4))
def test_it_takes_any_text(text: str, secrets: list[str]):
    assert isinstance(Redaction(secrets)(text), str)


@pytest.mark.parametrize("before", ["", "B", "Be", "Bearer ", "Authorization: Bearer "])
def test_a_secret_in_the_middle_of_base64_is_hidden(before: str):
    token = "Zk9xQ7TtPqv3Ls88abXY"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(f"{before}{token} and more".encode()).decode()
        shown = Redaction([token])(text)
        assert "***" in shown
        assert not any(
            token[start : start + 6].encode() in base64.b64decode(shown.split("***")[0] + "==") for start in range(3)
        )


def test_references_of_html_are_read_without_their_semicolon():
    for form in ("&#{}", "&#x{:x}", "&#{};"):
        assert "".join(map(chr, b"Zk9xQ7Tt")) not in html.unescape(
            Redaction(["Zk9xQ7TtPqv3"])("".join(form.format(ord(each)) for each in "Zk9xQ7TtPqv3"))
        )
