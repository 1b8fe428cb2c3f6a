"""Sends calls to the servers of their slots, and retries those that are safe to repeat."""
