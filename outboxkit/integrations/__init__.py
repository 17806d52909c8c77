"""Integrations with web frameworks. Each module is imported only in services that use its framework."""
