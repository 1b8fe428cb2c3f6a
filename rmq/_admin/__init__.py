"""Inspection, search, control, dead letters, history and streams."""
