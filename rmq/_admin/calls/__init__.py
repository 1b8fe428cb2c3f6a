"""Calls of the scripts that only operators need, beside those of `rmq._admin.control`."""
