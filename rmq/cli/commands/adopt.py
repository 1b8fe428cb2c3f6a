"""`rmq adopt`: the deliberate way of a topic's slots to another ZooKeeper ensemble."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rmq.adoption import Adoption
from rmq.cli.session import DEADLINE_S, Session, new_table
from rmq.client import RmqClient
from rmq.coordination import Coordinator
from rmq.errors import InvalidValueError


def adopt(
    session: Session,
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    zookeeper: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="The ensemble that the slots shall belong to.")
    ] = None,
    chroot: Annotated[str, typer.Option(metavar="PATH", help="The path below which RMQ's nodes lie there.")] = "/rmq",
    no_zookeeper: Annotated[bool, typer.Option(help="The slots shall belong to consumers without ZooKeeper.")] = False,
    from_ensemble: Annotated[
        str | None,
        typer.Option("--from", metavar="ENSEMBLE", help="The ensemble to take them from. Without, nothing is changed."),
    ] = None,
) -> None:
    """Show which ZooKeeper ensemble a topic's slots belong to, or move them to another one."""
    if from_ensemble is not None and (zookeeper is None) is not no_zookeeper:
        raise InvalidValueError("say where the slots shall go: either --zookeeper HOST:PORT,... or --no-zookeeper")
    coordinator = None if zookeeper is None else Coordinator(zookeeper, chroot=chroot)
    with RmqClient(session.options.url, zookeeper=coordinator, deadline_s=DEADLINE_S) as client:
        adoption = client.adopt(topic, from_ensemble)
    if session.json:
        session.document(asdict(adoption))
    elif from_ensemble is None:
        _show(session, adoption, to_zookeeper=zookeeper is not None)
    else:
        there = adoption.ensemble or "consumers without ZooKeeper"
        session.line(f"{adoption.moved:,} of {sum(adoption.stored.values()):,} slots moved to {there}")


def _show(session: Session, adoption: Adoption, *, to_zookeeper: bool) -> None:
    table = new_table("ensemble", ">slots")
    for ensemble, slots in sorted(adoption.stored.items()):
        table.add_row(ensemble or "none", f"{slots:,}")
    session.out.print(table)
    if to_zookeeper:
        session.note(f"the ensemble at --zookeeper is {adoption.ensemble}; --from ENSEMBLE moves the slots over to it")
