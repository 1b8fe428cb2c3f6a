"""Waiting, in threads or in an event loop, the connection to one server, and hosts of web servers."""
