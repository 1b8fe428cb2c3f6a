"""Calls of the scripts that only operators need: to look at messages, control them, and manage the dead and streams."""
