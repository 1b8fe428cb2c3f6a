"""How to wait, in threads or in an event loop, and one socket."""
