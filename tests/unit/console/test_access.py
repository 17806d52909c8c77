"""Who gets in, and who does not: tokens, links, passwords, proxies, sessions and forged requests."""

import base64
import dataclasses

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from outboxkit.console import Access, BasicAccess, LinkAccess, ProxyAccess, TokenAccess, console
from outboxkit.console.access import Failures, TooManyFailures
from outboxkit.console.sessions import Guard, Sessions, host_of
from outboxkit.errors import ConfigurationError
from tests.unit.console.conftest import TOKEN, Browser, csrf_in


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_nobody_sees_a_page_without_logging_in(browser: Browser):
    async with browser(token=None) as client:
        for path in ("/", "/messages", "/message?id=x", "/keys", "/audit", "/search?q=x"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert (await client.get("/static/console.css")).status_code == 200
        assert "outboxkit_" not in (await client.get("/login")).text


async def test_the_right_token_begins_a_session_that_a_log_out_ends(browser: Browser):
    async with browser() as client:
        page = await client.get("/")
        assert page.status_code == 200
        cookies = dict(client.cookies)
        assert (await client.post("/logout", data={"csrf": csrf_in(page.text)})).status_code == 303
        client.cookies.update(cookies)
        assert (await client.get("/")).status_code == 303


async def test_a_wrong_token_is_refused_and_after_ten_of_them_no_other_is_queried_at(browser: Browser):
    async with browser(token=None) as client:
        for _ in range(10):
            assert (await client.post("/login", data={"token": "wrong"})).status_code == 403
        answer = await client.post("/login", data={"token": TOKEN})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")


def test_failures_are_forgotten_after_a_minute_and_are_those_of_one_client():
    now = 0.0
    failures = Failures(lambda: now)
    for _ in range(10):
        failures.check("a")
        failures.add("a")
    failures.check("b")
    with pytest.raises(TooManyFailures):
        failures.check("a")
    now = 61.0
    failures.check("a")


async def test_names_that_are_made_up_do_not_help_to_try_more_passwords(browser: Browser):
    access = BasicAccess({"ann": "correct horse"})
    async with browser(token=None, access=access) as client:
        answers = [await client.get("/", headers=basic(f"u{number}", "wrong")) for number in range(51)]
        assert [answer.status_code for answer in answers] == [401] * 50 + [429]


async def test_a_link_works_once_after_any_number_of_wrong_ones(browser: Browser):
    access = LinkAccess(user="ann")
    link = f"/login?once={access.token}"
    async with browser(token=None, access=access) as client:
        for number in range(30):
            assert (await client.get(f"/login?once=x{number}")).status_code == 403
        assert (await client.head(link)).status_code == 200, "a preview of the link does not use it up"
        assert (await client.get(link)).headers["location"] == "/"
        assert (await client.get("/")).status_code == 200
        client.cookies.clear()
        assert (await client.get(link)).status_code == 403
        assert "prints" not in (await client.get("/")).text


@pytest.mark.parametrize("secret", [None, "a secret of many signs"])
async def test_another_token_ends_all_sessions(browser: Browser, sqlite_url: str, secret: str | None):
    async with browser(secret=secret) as client:
        cookies = client.cookies
    same = console(sqlite_url, access=TokenAccess(TOKEN, user="ann"), secret=secret)
    other = console(sqlite_url, access=TokenAccess(f"{TOKEN} 2", user="ann"), secret=secret)
    for app, status in ((same, 200), (other, 303)):
        async with browser(token=None, app=app) as client:
            client.cookies.update(cookies)
            assert (await client.get("/messages")).status_code == status


async def test_a_session_that_a_request_brings_is_not_taken_over(browser: Browser):
    async with browser(token=None) as client:
        signed = Sessions("another key").begin("ann")
        for cookie in (signed, "x", "", "a.b.c"):
            client.cookies.set(Sessions(TOKEN)._name, cookie, domain="localhost.local", path="/")
            assert (await client.get("/")).status_code == 303
        before = client.cookies.get(Sessions(TOKEN)._name)
        answer = await client.post("/login", data={"token": TOKEN})
        assert before not in answer.headers["set-cookie"]


async def test_the_cookie_is_kept_from_scripts_and_other_sites(browser: Browser):
    async with browser(token=None, hosts=["shop.example", "localhost"]) as client:
        here = await client.post("/login", data={"token": TOKEN})
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(here.headers["set-cookie"].split("; "))
        assert "Secure" not in here.headers["set-cookie"]
        elsewhere = await client.post("/login", data={"token": TOKEN}, headers={"Host": "shop.example"})
        assert "Secure" in elsewhere.headers["set-cookie"]


async def test_basic_authentication(browser: Browser):
    access = BasicAccess({"ann": "correct horse", "bob": "battery staple"}, may={"ann": {"read", "operate"}})
    async with browser(token=None, access=access) as client:
        refused = await client.get("/")
        assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        assert (await client.get("/", headers=basic("ann", "correct horse"))).status_code == 200
        for headers in (basic("ann", "battery staple"), basic("", ""), {"Authorization": "Basic §§§".encode()}):
            assert (await client.get("/", headers=headers)).status_code == 401
        for _ in range(10):
            await client.get("/", headers=basic("bob", "wrong"))
        assert (await client.get("/", headers=basic("bob", "battery staple"))).status_code == 429
        assert (await client.get("/", headers=basic("ann", "correct horse"))).status_code == 200


async def test_a_proxy_names_the_user_and_nobody_else_does(browser: Browser):
    named = {"X-Forwarded-User": "ann"}
    async with browser(token=None, access=ProxyAccess("10.0.0.0/28")) as client:
        assert (await client.get("/")).status_code == 403
        assert "ann" in (await client.get("/", headers=named)).text
        assert (await client.get("/", headers=named | {"X-Forwarded-For": "1.2.3.4"})).status_code == 200
        assert (await client.get("/", headers=named | {"X-Forwarded-For": "10.0.0.9, 1.2.3.4"})).status_code == 403
        for claimed in ("10.0.0.9:55", "[10.0.0.9]", "1.2.3.4, [10.0.0.9]:55", '"10.0.0.9:55"', " 10.0.0.9 :5"):
            assert (await client.get("/", headers=named | {"X-Forwarded-For": claimed})).status_code == 403
        twice = [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")]
        assert (await client.get("/", headers=twice)).status_code == 403
    async with browser(token=None, access=ProxyAccess("10.0.0.1")) as client:
        assert (await client.get("/", headers=named)).status_code == 403


async def test_an_access_of_ones_own_may_be_async(browser: Browser):
    async def access(request: Request) -> Access | None:
        return Access("ann", {"payload"} if "x" in request.query_params else {"read"})

    async with browser(token=None, access=access) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/?x=1")).status_code == 403


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TokenAccess("short"), "the token has 5 characters: 12 or more are accepted"),
        (lambda: BasicAccess({"ann": "short"}), "the password of 'ann' has 5 characters"),
        (lambda: Access("ann", {"write"}), "may has 'write': read, payload, operate are accepted"),
        (lambda: Access(""), "the user of an Access is empty"),
        (ProxyAccess, "the address of the proxy is not given"),
        (lambda: ProxyAccess("proxy.example"), "a proxy's address or network is accepted"),
        (lambda: ProxyAccess("10.0.0.1", may={"ann": {"all"}}), "may has 'all'"),
        (lambda: console("sqlite://", access=TokenAccess(TOKEN), redact="email"), "redact is the text 'email'"),
        (lambda: console("sqlite://", access=TokenAccess(TOKEN), hosts="shop.example"), "hosts is the text"),
        (lambda: console("sqlite://", access=TokenAccess(TOKEN), also="sqlite://"), "also is the text"),
        (lambda: console("sqlite://", access=TokenAccess(TOKEN), secret="x"), "secret has 1 character"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_start(make, text: str):
    with pytest.raises(ConfigurationError, match=text.split(":", maxsplit=1)[0]):
        make()


def test_one_right_may_be_written_as_a_text():
    assert dataclasses.replace(Access("ann"), may="operate").may == {"operate"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_another_sites_form_is_refused(browser: Browser, headers: dict[str, str]):
    async with browser() as client:
        csrf = csrf_in((await client.get("/")).text)
        assert (await client.post("/logout", data={"csrf": csrf}, headers=headers)).status_code == 403
        assert (await client.get("/")).status_code == 200


async def test_a_proxy_that_does_not_pass_the_host_on_is_named(browser: Browser):
    async with browser() as client:
        csrf = csrf_in((await client.get("/")).text)
        origin = {"Origin": "https://shop.example.com", "Sec-Fetch-Site": "same-origin"}
        answer = await client.post("/logout", data={"csrf": csrf}, headers=origin)
    assert answer.status_code == 403
    assert "https://shop.example.com, and this request is for localhost:8000: a proxy has to pass" in answer.text


async def test_a_form_without_its_token_is_refused(browser: Browser):
    async with browser() as client:
        for data in ({"x": "y"}, {"csrf": ""}, {"csrf": "0" * 64}):
            assert (await client.post("/logout", data=data)).status_code == 403
        assert (await client.post("/logout", json={})).status_code == 415
        assert (await client.post("/logout", data={"csrf": "x" * 300_000})).status_code == 413


async def test_other_hosts_are_refused(browser: Browser):
    async with browser() as client:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", ""):
            assert (await client.get("/", headers={"Host": host})).status_code == 400
        for host in ("127.0.0.1:9", "[::1]:9", "LOCALHOST"):
            assert (await client.get("/login", headers={"Host": host})).status_code in (200, 303)
    async with browser(token=None, hosts=["Shop.Example.com"]) as client:
        assert (await client.get("/login", headers={"Host": "SHOP.example.com"})).status_code == 200
    assert [host_of(each) for each in ("a:1", "a", "[::1]", "[::1]:1")] == ["a", "a", "[::1]", "[::1]"]


async def test_every_answer_has_the_headers_that_keep_it_to_itself(browser: Browser):
    async with browser() as client:
        for path in ("/", "/nothing", "/login", "/static/console.css", "/static/../access.py"):
            headers = (await client.get(path)).headers
            assert "unsafe" not in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


async def test_paths_and_headers_lead_nowhere_else(browser: Browser):
    async with browser() as client:
        for path in ("/static/%2e%2e/access.py", "/static/..%2faccess.py", "/static//etc/passwd"):
            answer = await client.get(path)
            assert (answer.status_code, "import" in answer.text) == (404, False), path
        for path in ("/search?q=x%0d%0aX-Evil:1", "/message?id=x%0d%0aX-Evil:1", "/messages?after=%0d%0aX-Evil:1"):
            assert not [value for value in (await client.get(path)).headers.values() if {"\r", "\n"} & set(value)]


async def test_only_http_is_served():
    sent = []

    async def send(message):
        sent.append(message)

    await Guard(Starlette(), ["*"])({"type": "websocket"}, None, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
