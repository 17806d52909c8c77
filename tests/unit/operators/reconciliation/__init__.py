"""Tests of reconciliation."""
