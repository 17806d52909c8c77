"""Help for the tests of an application, and the suite that every broker must pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outboxkit.testing.once import assert_effects_once

__all__ = ["assert_effects_once"]

_MODULES = {"assert_effects_once": "once"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: the plugin is loaded in suites that use none of this."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
