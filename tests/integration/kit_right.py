"""The handlers of a worker that is killed: one of the right ones."""

from tests.integration.kit_handlers import right_book_async

__all__ = ["right_book_async"]
