"""Arguments and options shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import typer

from rmq.cli.parsing import parse_rate
from rmq.spi import typed_duration_ms, typed_instant_ms


def typed(parse: Callable[[str, str], Any]) -> Callable[[str], partial[Any]]:
    """Return a parser for typer that delays `parse` until the command runs, when the option's name is known."""
    return lambda text: partial(parse, text)


duration, instant = typed(typed_duration_ms), typed(typed_instant_ms)


def span_of(milliseconds: int | None) -> timedelta | None:
    """Return parsed milliseconds as a `timedelta`; `None` stays `None`."""
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


payload = os.fsencode
"""Converts an argument to the bytes that were typed. Python decodes bytes that are not UTF-8 to surrogates."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
StreamName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the stream topic.")]
Content = Annotated[bytes, typer.Argument(metavar="CONTENT", help="Content of the message.", parser=payload)]
SlotBasis = Annotated[
    bytes | None,
    typer.Option(
        metavar="TEXT", help="Slot basis (routing key) that the message was sent with, if any.", parser=payload
    ),
]
Slots = Annotated[
    list[int] | None, typer.Option("--slot", metavar="N", help="Only this slot. Can be given more than once.")
]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="stream: name of the group.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Start = Annotated[
    str | None,
    typer.Option(
        "--start", metavar="new|all|ID", help="stream: position at which a new group starts.  \\[default: new]"
    ),
]
ZooKeeperUser = Annotated[
    str | None,
    typer.Option(
        "--zookeeper-user", metavar="NAME", help="User name. The password is read from RMQ_ZOOKEEPER_PASSWORD."
    ),
]
ZooKeeperCa = Annotated[
    str | None,
    typer.Option(
        "--zookeeper-ca", metavar="FILE", help="TLS: file of CA certificates, or `system` for those of this machine."
    ),
]
ZooKeeperCert = Annotated[str | None, typer.Option("--zookeeper-cert", metavar="FILE", help="TLS: client certificate.")]
ZooKeeperKey = Annotated[
    str | None,
    typer.Option(
        "--zookeeper-key", metavar="FILE", help="TLS: client key. Its password is read from RMQ_ZOOKEEPER_KEY_PASSWORD."
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Maximum number of messages.")]
NewPriority = Annotated[int | None, typer.Option("--priority", help="priority: new priority. Default: the lowest.")]
DueIn = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", help="range-merge, fixed-time: due after this duration. Default: now.", parser=duration
    ),
]
PER_SECOND = typer.Option(
    "--rate",
    metavar="N/s",
    help="Maximum number of messages per second (or N/m, N/h) in the whole cluster.",
    parser=typed(parse_rate),
)
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
