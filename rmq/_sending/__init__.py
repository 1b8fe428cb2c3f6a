"""Sending: producers, and waiting while a backlog is full."""
