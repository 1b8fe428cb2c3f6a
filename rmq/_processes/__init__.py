"""Servers and processes that RMQ itself starts."""
