"""`rmq demo`: a day of real orders, with live figures and a check at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rmq.cli.console import Session


def demo(
    session: Session,
    seconds: Annotated[float, typer.Option(min=1)] = 20.0,
    pictures: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None,
) -> int:
    """Replay a day of real orders, show live figures, and check that no message was lost.

    Options:
        seconds: Seconds in which the day of orders is replayed.
        pictures: Draw pictures in this folder. Requires the extra demo.
    """
    from rmq.demo.show import run  # loaded only here: it brings its data along

    return run(
        url=session.options.url, seconds=seconds, json_output=session.json, console=session.out, pictures=pictures
    )
