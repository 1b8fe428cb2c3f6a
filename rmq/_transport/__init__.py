"""From a URL to the servers behind it: calls carried out, and what may be repeated."""
