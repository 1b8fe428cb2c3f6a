"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rmq._model.times import parse_duration_ms
from rmq.cli.parsing import typed_bytes


@dataclass(frozen=True, slots=True)
class Typed:
    """Marks an option that people type as text: a function turns the text into what the command gets.

    Attributes:
        parse: Gets the text and the option's name.
    """

    parse: Callable[[str, str], Any]


def payload(text: str, name: str) -> bytes:
    """Return a typed content or body in bytes."""
    del name
    return typed_bytes(text)


TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]
StreamName = Annotated[str, typer.Argument(help="Name of the stream topic.")]
Content = Annotated[bytes, Typed(payload), typer.Argument(help="Content of the message.")]
SlotBasis = Annotated[
    bytes | None,
    Typed(payload),
    typer.Option("--slot-basis", metavar="TEXT", help="Slot basis that it was sent with, if any."),
]
Slots = Annotated[list[int] | None, typer.Option("--slot", metavar="N", help="Only this slot; repeatable.")]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="stream: for this group.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Start = Annotated[
    str | None,
    typer.Option("--start", metavar="new|all|ID", help="stream: where a new group begins.  \\[default: new]"),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Most messages.")]
NewPriority = Annotated[
    int | None, typer.Option("--priority", help="PRIORITY topics: their new priority; the lowest by default.")
]
DueIn = Annotated[
    int | None,
    Typed(parse_duration_ms),
    typer.Option("--due-in", metavar="DURATION", help="Time topics: due this long after now; at once by default."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
