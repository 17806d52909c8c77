"""Whatever a browser asks or sends, the console answers, and goes on."""

from urllib.parse import quote

from tests.support.grammar import Grammar
from tests.support.night import by_night, chance
from tests.unit.console.conftest import Browser, csrf_in

READ = (
    *("/", "/messages", "/message", "/search", "/keys", "/audit", "/dead", "/dead/plan", "/replay", "/operations"),
    *("/operation", "/requests", "/retention", "/workers", "/x"),
)
WRITTEN = ("/dead/plan", "/replay", "/operation/stop", "/workers/pause", "/workers/resume", "/x")
NAMES = (
    *("id", "q", "type", "key", "state", "place", "after", "before", "older", "newer", "prefix", "by", "reason"),
    *("action", "all", "rate", "upto", "total", "selection", "why", "group", "same_key", "kind", "queue", "handler"),
    "page",
)
VALUES = (
    *("[1,2]", "[null,1]", "9" * 400, "9" * 19, "-1", "soon", "1h", "-1h", "held", "kept", "dead", "replay", "discard"),
    *("%", "_", "NaN", "1e400", "\ud800", "{}", '{"numbers": [1]}', "[" * 10_000, "2026-03-01", "x" * 5000, "1"),
)


async def test_every_request_is_answered(browser: Browser):
    grammar = Grammar(chance("console"))
    async with browser(may=("read", "payload", "operate")) as client:
        token = csrf_in((await client.get("/")).text)
        for _ in range(by_night(5_000, else_=200)):
            many = range(grammar.chance.randrange(4))
            pairs = [(grammar.chance.choice(NAMES), grammar.chance.choice((*VALUES, grammar.text()))) for _ in many]
            query = "&".join(f"{name}={quote(value, errors='surrogatepass')}" for name, value in pairs)
            if grammar.one_in(3):
                kinds = ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "")
                form = f"{query}&csrf={token}" if grammar.one_in(2) else query
                content = form.encode() if grammar.one_in(2) else grammar.body()[:10_000]
                headers = {"content-type": grammar.chance.choice(kinds)}
                answer = await client.post(grammar.chance.choice(WRITTEN), content=content, headers=headers)
            else:
                answer = await client.get(f"{grammar.chance.choice(READ)}?{query}")
            assert answer.status_code < 500, (answer.request.url, answer.request.content, answer.text[-500:])
            assert "Traceback" not in answer.text
        assert (await client.get("/")).status_code == 200
