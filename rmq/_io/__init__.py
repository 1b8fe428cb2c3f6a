"""Waiting in threads or in an event loop, connections to one server, loggers, observers, and host names."""
