"""The command line `rmq`. Requires the extra `cli`: `pip install 'rmq[cli]'`."""

import sys


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        from rmq.cli.app import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        sys.exit(f"rmq: the command line requires the package {missing}: pip install 'rmq[cli]'")
    run()


__all__ = ["main"]
