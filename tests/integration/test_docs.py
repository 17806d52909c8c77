"""Every page of the README and of docs/ works as it is printed: typed in an empty folder, on real servers.

`tests/support/pages.py` says what a page may hold; a page with a block that no reader sees is refused there.
"""

import ast
import os
import re
import secrets
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pika  # type: ignore[import-untyped]
import psycopg
import pytest
from sqlalchemy import make_url

from outboxkit.brokers.rabbitmq.topology import own_declarations, shared_declarations
from outboxkit.runtime.settings import Settings, load
from tests.processes import programs
from tests.servers import OwnServer
from tests.support.pages import PAGES, ROOT, Page, UnclearPage, libpq, parse, read
from tests.support.reader import Differs, Reader, compare

TUTORIAL = "docs/tutorial.md"
INSTALLING = (TUTORIAL,)
"""The pages with blocks in front of their start: these install, and name servers that a test has elsewhere."""
STEP_4 = "## 4. "
BY_DAY = ("README.md", TUTORIAL, "docs/how-to/write-a-handler.md")
"""The pages that are typed by day too."""
STARTS = ("an empty folder", "[step 3 of the tutorial]", "a clone of the repository")
NOT_TYPED = "docs/explanation/performance.md"
"""The one page that starts from a clone: its commands measure for an hour."""


@pytest.fixture(scope="session")
def vhost_url(own_rabbitmq: OwnServer) -> str:
    """A vhost in which the pages' own names, such as the queue `billing`, are nobody else's."""
    name = f"pages-{secrets.token_hex(4)}"
    url = make_url(own_rabbitmq.url)
    own_rabbitmq.execute("rabbitmqctl", "add_vhost", name)
    own_rabbitmq.execute("rabbitmqctl", "set_permissions", "-p", name, url.username or "", ".*", ".*", ".*")
    return url.set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def servers(page: str, vhost_url: str, empty_postgresql_url: str) -> Iterator[dict[str, str]]:
    """An empty database, and a broker without queues; roles and queues that the page makes are removed."""
    yield {"OUTBOXKIT_DATABASE_URL": empty_postgresql_url, "OUTBOXKIT_BROKER_URL": vhost_url}
    text = (ROOT / page).read_text()
    remove_queues(vhost_url, {"billing", *re.findall(r"--queue ([^\s:,]+)", text)})
    with psycopg.connect(libpq(empty_postgresql_url), autocommit=True) as connection:
        for role in re.findall(r"CREATE ROLE (\w+);", text):
            connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def remove_queues(url: str, names: set[str]) -> None:
    delays = Settings.model_fields["retry_delays"].default
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        own = {each for name in names for each in (name, f"{name}.dead", *own_declarations(name, delays))}
        for queue in own | set(shared_declarations(delays)):
            connection.channel().queue_delete(queue)
        connection.channel().exchange_delete("outboxkit")


def environment(page: Page, servers: dict[str, str]) -> dict[str, str]:
    """What a reader's shell has: the programs, a wide window, and the servers' URLs if the page asks for them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOXKIT_", "PYTHON"))}
    path = os.pathsep.join((str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]))
    named = {name: url for name, url in servers.items() if name in page.start}
    return {**kept, **named, "PATH": path, "COLUMNS": "120"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in BY_DAY else pytest.mark.night)
        for page in PAGES
        if page != NOT_TYPED and "```" in (ROOT / page).read_text()
    ],
)
def test_a_page_works_as_printed(page: str, servers: dict[str, str], tmp_path: Path) -> None:
    whole, tutorial = read(page), read(TUTORIAL)
    after_tutorial = STARTS[1] in whole.start
    folder = tmp_path / "folder"
    folder.mkdir()
    with Reader(folder, environment(tutorial if after_tutorial else whole, servers)) as reader:
        if after_tutorial:
            reader.follow(tutorial, until=line_of(TUTORIAL, STEP_4))
        reader.follow(whole)


def line_of(page: str, heading: str) -> int:
    return next(
        number for number, line in enumerate((ROOT / page).read_text().splitlines(), 1) if line.startswith(heading)
    )


def test_every_page_is_clear() -> None:
    """Nothing is hidden, every fence has its place, and the page says what it starts from."""
    for page in PAGES:
        whole = read(page)
        assert bool(whole.before) == (page in INSTALLING), page
        assert STARTS[2] not in whole.start or page == NOT_TYPED
        if whole.blocks:
            assert sum(start in whole.start for start in STARTS) == 1, f"{page}: {whole.start}"


@pytest.mark.parametrize("page", INSTALLING)
def test_the_servers_that_a_page_names_are_accepted(page: str) -> None:
    """The one thing that is not typed as printed: the test's servers are elsewhere."""
    printed = "".join(block.body for block in read(page).before)
    urls = re.findall(r"^export OUTBOXKIT_(\w+)=(\S+)$", printed, re.MULTILINE)
    settings = load({name.lower(): url for name, url in urls})
    assert settings.database_url.get_secret_value().startswith("postgresql+psycopg://")
    assert settings.broker_url.get_secret_value().startswith("amqp://")


@pytest.mark.parametrize(
    "text",
    [
        "**Start from** an empty folder.\n\n<!-- sh\ntrue\n-->\n",
        "**Start from** an empty folder.\n\n```sh no-run\ntrue\n```\n",
        "**Start from** an empty folder.\n\n* item\n\n    ```sh\n    true\n    ```\n",
        "**Start from** an empty folder.\n\n```\ntrue\n```\n",
        "**Start from** an empty folder.\n\nIt prints:\n\n```text\nnothing\n```\n",
        "**Start from** an empty folder.\n\n~~~sh\ntrue\n~~~\n",
        "```sh\ntrue\n```\n",
    ],
    ids=["comment", "word behind the language", "indented", "no language", "output of nothing", "tildes", "no start"],
)
def test_an_unclear_page_is_refused(text: str) -> None:
    with pytest.raises(UnclearPage):
        parse("page.md", text)


def test_what_a_page_shows_is_compared(tmp_path: Path) -> None:
    text = """**Start from** an empty folder.

Put this in `shop/greet.py`:

```python
print("hello")
```

```sh
export NAME=ann
python shop/greet.py
```

```text
hello
```

```python
import os
for _ in range(2):
    print(os.environ["NAME"])
```

```text
ann
...
```
"""
    shell = environment(parse("page.md", text), {})
    for folder in ("as-printed", "other-output", "failure"):
        (tmp_path / folder).mkdir()
    with Reader(tmp_path / "as-printed", shell) as reader:
        reader.follow(parse("page.md", text))
    with pytest.raises(Differs, match="goodbye"), Reader(tmp_path / "other-output", shell) as reader:
        reader.follow(parse("page.md", text.replace("```text\nhello", "```text\ngoodbye")))
    with pytest.raises(Differs, match="exit 1"), Reader(tmp_path / "failure", shell) as reader:
        reader.follow(parse("page.md", text + "\n```sh\nfalse\n```\n"))


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        ("one ... three\nfour", True),
        ("...\nfour", True),
        ("one\n...", False),
        ("one ... four", False),
        ("one...", False),
    ],
)
def test_dots_hide_no_more_lines_than_the_page_shows_them_for(shown: str, fits: bool) -> None:
    printed = "one two three\nfour\n"
    if fits:
        compare(shown, printed, "page.md:1")
    else:
        with pytest.raises(Differs):
            compare(shown, printed, "page.md:1")


def test_a_page_says_how_to_get_what_the_extra_all_has_not() -> None:
    """A reader has `outboxkit[all]`; the tests' environment has more, so a page works there that works nowhere else."""
    owners, everything = metadata.packages_distributions(), required("outboxkit", of_extras=True)
    for page in PAGES:
        whole, text = read(page), (ROOT / page).read_text()
        own = {"shop", *(Path(block.path).parts[0].removesuffix(".py") for block in whole.blocks if block.path)}
        typed = "\n".join(block.body for block in whole.blocks if block.kind not in ("output", "example"))
        modules = set(re.findall(r"^ *(?:from|import|python -m) (\w+)", typed, re.MULTILINE)) - own
        said = " ".join((whole.start, *re.findall(r"pip install [^`]+", text))).lower()
        for module in modules - sys.stdlib_module_names:
            packages = {name.lower() for name in owners.get(module, [module])}
            assert packages & everything or any(name in said for name in packages), f"{page}: {module}"


def required(package: str, *, of_extras: bool = False) -> set[str]:
    """The names of a package and of all that it requires."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # of another Python or system
        return {package}
    names = {re.split(r"[^\w.-]", line)[0].lower() for line in lines if of_extras or "extra ==" not in line}
    return {package}.union(*map(required, names))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        assert [each for each in targets if not ((ROOT / page).parent / each).exists()] == [], page


def test_proofs_exist() -> None:
    """What a page links as the test of a promise is a test function of that file."""
    for page in PAGES:
        for name, target in re.findall(r"\[`(test_\w+)`\]\(([^)]+\.py)\)", (ROOT / page).read_text()):
            tree = ast.parse(((ROOT / page).parent / target).read_text())
            assert name in {node.name for node in ast.walk(tree) if hasattr(node, "name")}, f"{page}: {target}, {name}"


def test_every_promise_has_a_proof() -> None:
    text = (ROOT / "docs/explanation/guarantees.md").read_text()
    promises = re.findall(r"^## \d+\. .*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(promises) == 12
    for promise in promises:
        bullets = re.findall(r"^\* (.*?)(?=^\S|\n\n|\Z)", promise, re.MULTILINE | re.DOTALL)
        assert bullets
        assert all("[`test_" in bullet for bullet in bullets), promise
