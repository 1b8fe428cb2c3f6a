"""Sends calls to the Redis servers behind a URL, and retries those that are safe to repeat."""
