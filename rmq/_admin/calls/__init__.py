"""Calls of scripts that only operators need, and that several modules of `rmq._admin` use."""
