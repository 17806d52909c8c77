"""Integrations whose framework is not installed, and what they use of FastAPI that it does not promise."""

import importlib
import inspect
import sys

import fastapi
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute

PRIVATE = {
    "fastapi.dependencies.utils": ("get_flat_params",),
    "fastapi.dependencies.models": ("Dependant",),
    "fastapi.datastructures": ("DefaultPlaceholder",),
    "fastapi.params": ("Depends",),
    "fastapi.concurrency": ("run_in_threadpool",),
    "fastapi.routing": ("APIRoute",),
}
"""Names that no page of FastAPI promises, by module."""


@pytest.mark.parametrize("library", ["fastapi", "flask"])
def test_a_framework_that_is_missing_is_named_with_its_cure(library: str, monkeypatch: pytest.MonkeyPatch):
    for name in [each for each in sys.modules if each.startswith(f"outboxkit.http.{library}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'outboxkit\[{library}\]'") as raised:
        importlib.import_module(f"outboxkit.http.{library}")
    assert raised.value.name == library


async def test_fastapi_has_what_the_integration_uses_of_its_inside():
    told = f"FastAPI {fastapi.__version__} has no {{}} any more: outboxkit.http.fastapi has to be adapted to it"
    for module, names in PRIVATE.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), told.format(f"{module}.{name}")
    assert "scope" in inspect.signature(fastapi.params.Depends).parameters, told.format("Depends(scope=)")
    app, router = FastAPI(), APIRouter()
    router.add_api_route("/a/{b}", lambda b: b, methods=["POST"], dependencies=[])
    app.include_router(router, prefix="/x")
    route = next(one for one in router.routes if isinstance(one, APIRoute))
    for name in ("dependant", "endpoint", "methods", "path_format", "path_regex", "response_class", "openapi_extra"):
        assert hasattr(route, name), told.format(f"APIRoute.{name}")
    for name in ("call", "dependencies", "scope", "use_cache"):
        assert hasattr(route.dependant, name), told.format(f"Dependant.{name}")
    request = Request({"type": "http", "method": "POST", "headers": []})
    request._body = b"kept"
    assert await request.body() == b"kept", told.format("Request._body")
