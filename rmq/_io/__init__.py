"""Waiting, in threads or in an event loop, the connection to one server, loggers, observers, hosts of web servers."""
