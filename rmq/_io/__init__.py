"""Waiting, in threads or in an event loop, and the connection to one server."""
