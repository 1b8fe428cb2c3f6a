"""Producers, and what they wait for when a backlog is full."""
