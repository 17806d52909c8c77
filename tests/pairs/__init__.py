"""Pairs of features: scenarios in which every two of them meet once."""
