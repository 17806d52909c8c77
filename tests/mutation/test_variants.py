"""The list of broken variants fits the code as it is now."""

from pathlib import Path

import pytest

from tests.mutation.variants import VARIANTS, Variant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.broken.replace(" ", "-"))
def test_a_variant_changes_one_place_of_code_that_is_there(variant: Variant) -> None:
    text = (ROOT / "outboxkit" / variant.module).read_text()

    assert text.count(variant.right) == 1
    compile(text.replace(variant.right, variant.wrong), variant.module, "exec")
    assert all((ROOT / "tests" / name).exists() for name in variant.tests.split())


def test_the_page_says_how_many_there_are_and_how_many_need_a_server() -> None:
    on_servers = [each for each in VARIANTS if not all(name.startswith("unit/") for name in each.tests.split())]
    page = (ROOT / "docs/contributing.md").read_text().replace("\n", " ")
    assert f"breaks promises in {len(VARIANTS)} ways" in page
    assert f"; {len(on_servers)} need a server." in page
