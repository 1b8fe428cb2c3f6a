"""Builds the documentation site from docs/, the API reference from the docstrings: `make docs`."""
