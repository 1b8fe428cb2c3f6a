"""The command line, `rmq`."""

from rmq.cli.app import main

__all__ = ["main"]
