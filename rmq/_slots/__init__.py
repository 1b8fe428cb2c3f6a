"""The code that changes a topic in Redis."""
