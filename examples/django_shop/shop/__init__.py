"""The shop's app."""
