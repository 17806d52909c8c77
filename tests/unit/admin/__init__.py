"""The admin port."""
