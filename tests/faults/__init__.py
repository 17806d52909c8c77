"""Faults from a seed, and the histories of messages under them."""
