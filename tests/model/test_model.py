"""The models of the protocol hold, and each of them fails for the right reason if it is broken."""

import re

import pytest

from tests.model.spin import FOLDER, Model, Variant, check, models, provide
from tests.support.night import by_night

MODELS = models()
RUNS = [(model, sizes) for model in MODELS for sizes in by_night(model.by_night, else_=model.by_day)]
VARIANTS = [(model, variant) for model in MODELS for variant in model.variants]


@pytest.fixture(autouse=True)
def _programs() -> None:
    provide()


@pytest.mark.parametrize(("model", "sizes"), RUNS, ids=[f"{model.name} {sizes}" for model, sizes in RUNS])
def test_every_property_holds_in_every_state(model: Model, sizes: str) -> None:
    found = check(model, sizes)
    assert found.refuted is None, "\n".join(found.trace)
    assert found.states > 1000


@pytest.mark.night
@pytest.mark.parametrize(
    ("model", "variant"), VARIANTS, ids=[f"{model.name} {variant.name}" for model, variant in VARIANTS]
)
def test_a_broken_model_is_refuted_for_the_right_reason(model: Model, variant: Variant) -> None:
    assert check(model, model.broken, variant).refuted == variant.breaks


@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
def test_every_property_can_fail(model: Model) -> None:
    """One that no broken variant refutes may hold by construction."""
    assert {variant.breaks for variant in model.variants} == {each.name for each in model.properties}
    assert model.by_day
    assert model.by_night


def test_the_page_names_every_model_and_the_number_of_variants() -> None:
    page = (FOLDER.parents[1] / "docs/explanation/model.md").read_text()
    assert {f"{model.name}.pml" for model in MODELS} <= set(re.findall(r"`([\w.]+)`", page))
    assert f"The models have {len(VARIANTS)} variants" in page
