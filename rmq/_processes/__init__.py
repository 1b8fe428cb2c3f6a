"""Servers and processes that RMQ starts."""
