"""Integrations whose framework is not installed, and what they use of FastAPI that it does not promise."""

import importlib
import inspect
import sys

import fastapi
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute


@pytest.mark.parametrize("library", ["fastapi", "flask"])
def test_a_framework_that_is_missing_is_named_with_its_cure(library: str, monkeypatch: pytest.MonkeyPatch):
    for name in [each for each in sys.modules if each.startswith(f"outboxkit.http.{library}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'outboxkit\[{library}\]'") as raised:
        importlib.import_module(f"outboxkit.http.{library}")
    assert raised.value.name == library


def test_fastapi_has_what_the_integration_uses_of_its_inside():
    told = f"FastAPI {fastapi.__version__} has no {{}} any more: outboxkit.http.fastapi has to be adapted to it"
    assert "scope" in inspect.signature(fastapi.params.Depends).parameters, told.format("Depends(scope=)")
    app, router = FastAPI(), APIRouter()
    router.add_api_route("/a/{b}", lambda b: b, methods=["POST"], dependencies=[])
    app.include_router(router, prefix="/x")
    route = next(one for one in router.routes if isinstance(one, APIRoute))
    for name in ("dependant", "path_format", "openapi_extra"):
        assert hasattr(route, name), told.format(f"APIRoute.{name}")
    for name in ("call", "dependencies", "header_params", "scope", "use_cache"):
        assert hasattr(route.dependant, name), told.format(f"Dependant.{name}")
