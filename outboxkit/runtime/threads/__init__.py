"""Threads for plain handlers: each transaction in one of them, with a fence around its commit."""

from outboxkit.runtime.threads.pool import HandlerThread, Threads

__all__ = ["HandlerThread", "Threads"]
