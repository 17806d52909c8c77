"""Doors of a service that know a framework: each module is imported only by who uses its framework."""
