"""What `outboxkit doctor` finds about roles and their rights, each finding produced for real."""

import re

import pytest
from sqlalchemy import create_engine

from outboxkit.operators.doctor import rights
from outboxkit.operators.doctor.installation import Database, Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.settings import load
from tests.integration.operators.doctoring import codes, connected, examined, look, one, role
from tests.support.pages import blocks

PAGE = "docs/how-to/grant-least-privileges.md"
ROLES = {
    "shop_writer": {"add messages"},
    "shop_relay": {"add messages", "relay"},
    "shop_consumer": {"add messages", "consume"},
    "shop_operator": {"add messages", "prune", "replay dead letters"},
}
"""The roles of the page, and the work that each may do. `INSERT` into the outbox is all that adding needs."""


def script() -> str:
    return next(block.body for block in blocks(PAGE) if block.kind == "sql")


def granted(name: str) -> str:
    lines = [line for line in script().splitlines() if re.search(rf"\bTO {name};", line)]
    return "\n".join(lines)


@pytest.mark.parametrize("name", ROLES)
def test_the_roles_of_the_page_may_do_their_work(postgresql_url: str, name: str) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (own, url):
        owner.execute(granted(name).replace(f"TO {name};", f"TO {own};"))
        assert codes(url, rights.check_rights) == []
        engine = create_engine(postgresql_url)
        with engine.connect() as connection:
            database = Database(connection, Installation(load({"database_url": postgresql_url})))
            may = {work for work in rights.NEEDED if not rights.lacking(database, own, work)}
        engine.dispose()
        assert may == ROLES[name]


def test_a_role_that_may_do_nothing_is_told_what_it_lacks(postgresql_url: str) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        nothing = one(url, rights.check_rights, "right-missing")
        assert f"Role {name} is to add messages and lacks rights: INSERT ON outboxkit_outbox." in nothing.what
        for grant in granted("shop_relay").replace("TO shop_relay;", f"TO {name};").splitlines():
            owner.execute(grant)
        owner.execute(f"REVOKE INSERT ON outboxkit_outbox FROM {name}; REVOKE DELETE ON outboxkit_outbox FROM {name}")
        owner.execute(f"REVOKE UPDATE (held) ON outboxkit_outbox FROM {name}")
        alone = one(url, rights.check_rights, "right-missing")
        assert "is to relay and lacks rights: DELETE, UPDATE (held) ON outboxkit_outbox." in alone.what
        with connected(url, name="outboxkit relay"):
            finding = of_role(look(postgresql_url, rights.check_rights), "right-missing", name)
            assert "is to relay and lacks rights: DELETE, UPDATE (held) ON outboxkit_outbox." in finding.what
            owner.execute(finding.commands[0])
            assert "right-missing" not in codes(postgresql_url, rights.check_rights)


def test_an_operator_who_lacks_a_right_of_one_work_alone_is_told(postgresql_url: str) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        owner.execute(granted("shop_operator").replace("TO shop_operator;", f"TO {name};"))
        for work, right in (
            ("replay dead letters", "UPDATE (resolution) ON outboxkit_dead_letter"),
            ("prune", "DELETE ON outboxkit_handler"),
        ):
            owner.execute(f"REVOKE {right} FROM {name}")
            finding = one(url, rights.check_rights, "right-missing")
            assert finding.what == f"Role {name} is to {work} and lacks rights: {right}."
            owner.execute(finding.commands[0])
            assert codes(url, rights.check_rights) == []


@pytest.mark.parametrize(
    ("of", "session", "setting", "right"),
    [
        ("shop_relay", "outboxkit relay", "published_retention", "INSERT ON outboxkit_published"),
        ("shop_operator", "outboxkit retention", "dead_retention", "DELETE ON outboxkit_dead_letter"),
    ],
)
def test_a_right_that_a_setting_needs_is_named_if_it_is_set(
    postgresql_url: str, of: str, session: str, setting: str, right: str
) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        owner.execute(granted(of).replace(f"TO {of};", f"TO {name};"))
        with connected(url, name=session):
            assert "right-missing" not in codes(postgresql_url, rights.check_rights, **{setting: "7d"})
            owner.execute(f"REVOKE {right} FROM {name}")
            assert "right-missing" not in codes(postgresql_url, rights.check_rights)
            finding = of_role(look(postgresql_url, rights.check_rights, **{setting: "7d"}), "right-missing", name)
            assert f"lacks rights: {right}." in finding.what
            owner.execute(finding.commands[0])
            assert "right-missing" not in codes(postgresql_url, rights.check_rights, **{setting: "7d"})


def of_role(found: list[Diagnosis], code: str, name: str) -> Diagnosis:
    (finding,) = [each for each in found if each.code == code and name in each.what]
    return finding


def test_a_relay_from_which_row_level_security_hides_all_messages(postgresql_url: str) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        owner.execute(granted("shop_relay").replace("TO shop_relay;", f"TO {name};"))
        owner.execute("ALTER TABLE outboxkit_outbox ENABLE ROW LEVEL SECURITY")
        assert "right-missing" not in codes(postgresql_url, rights.check_rights), "its owner sees them"
        with connected(url, name="outboxkit relay"):
            finding = of_role(look(postgresql_url, rights.check_rights), "right-missing", name)
        assert (
            finding.what == f"Role {name} is to relay and lacks rights: to see a row of outboxkit_outbox, by a policy."
        )
        owner.execute(f"CREATE POLICY all_rows ON outboxkit_outbox TO {name} USING (true)")
        assert "right-missing" not in codes(url, rights.check_rights)
        owner.execute("DROP POLICY all_rows ON outboxkit_outbox")
        assert "right-missing" in codes(url, rights.check_rights)
        owner.execute(finding.commands[0])
        assert "right-missing" not in codes(url, rights.check_rights)


def test_a_check_that_lacks_a_right_says_so(postgresql_url: str) -> None:
    with connected(postgresql_url) as owner, role(postgresql_url) as (name, url):
        report = examined(url)
        owner.execute(f"GRANT SELECT ON outboxkit_schema_version TO {name}")
        (several,) = [each for each in examined(url).findings if each.code == "not-checked"]
    assert "The check of pauses, relays, " in several.what, "one finding tells of all"
    (finding,) = [each for each in report.findings if each.code == "not-checked"]
    assert "permission denied for table outboxkit_schema_version" in finding.what
    assert "grant-least-privileges" in finding.cure
    assert "right-missing" in {each.code for each in report.findings}
