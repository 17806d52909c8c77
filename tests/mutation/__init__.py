"""Mutation testing of the modules that carry promises: `make mutation`."""
