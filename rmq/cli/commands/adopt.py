"""`rmq adopt`: moves a topic's slots to another keeper of owners."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from rmq import Coordinator, RmqClient
from rmq.cli.console import DEADLINE_S, Columns, Session, table_of
from rmq.cli.options import TopicName
from rmq.errors import InvalidValueError
from rmq.spi import shown, zookeeper_access


def adopt(
    session: Session,
    topic: TopicName,
    zookeeper: Annotated[str | None, typer.Option(metavar="HOST:PORT,...")] = None,
    chroot: Annotated[str, typer.Option(metavar="PATH")] = "/rmq",
    zookeeper_user: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    zookeeper_ca: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    zookeeper_cert: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    zookeeper_key: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    owners: Annotated[Literal["redis"] | None, typer.Option()] = None,
    no_zookeeper: Annotated[bool, typer.Option("--no-zookeeper")] = False,
    from_ensemble: Annotated[str | None, typer.Option("--from", metavar="ENSEMBLE")] = None,
) -> None:
    """Show which ensembles own a topic's slots, or move the slots to another ensemble.

    An ensemble is a group of ZooKeeper servers, or the owners that a Redis keeps, written as redis: and the
    identity of that Redis.

    Options:
        zookeeper: The ensemble to move the slots to.
        owners: `redis`: move the slots to owners that Redis keeps.
        chroot: Path of RMQ's nodes in the ensemble.
        zookeeper_user: User name. The password is read from RMQ_ZOOKEEPER_PASSWORD.
        zookeeper_ca: TLS: file of CA certificates, or `system` for those of this machine.
        zookeeper_cert: TLS: client certificate.
        zookeeper_key: TLS: client key. Its password is read from RMQ_ZOOKEEPER_KEY_PASSWORD.
        no_zookeeper: Remove the ownership: then every consumer may claim from the slots.
        from_ensemble: The ensemble to move the slots from. Without it, nothing is changed.
    """
    named = {"--owners": owners is not None, "--zookeeper": zookeeper is not None, "--no-zookeeper": no_zookeeper}
    given = [option for option, is_given in named.items() if is_given]
    if len(given) > 1:
        raise InvalidValueError(f"{' and '.join(given)} cannot be combined; give one of them")
    if from_ensemble is not None and not given:
        raise InvalidValueError(
            "--from requires the new owner of the slots: --zookeeper HOST:PORT,..., --owners redis or --no-zookeeper"
        )
    files = {"--zookeeper-ca": zookeeper_ca, "--zookeeper-cert": zookeeper_cert, "--zookeeper-key": zookeeper_key}
    auth, tls = zookeeper_access(zookeeper_user, "--zookeeper-user", files)
    coordinator = None if zookeeper is None else Coordinator(zookeeper, chroot=chroot, auth=auth, tls=tls)
    with RmqClient(session.options.url, zookeeper=coordinator, owners=owners, deadline_s=DEADLINE_S) as client:
        adoption = client.adopt(topic, from_ensemble)
    if from_ensemble is not None:
        there = shown(adoption.ensemble) or "consumers without owners"
        moved = f"{adoption.moved:,} of {sum(adoption.stored.values()):,} slots moved to {there}"
        session.result(asdict(adoption), moved)
        return
    columns: Columns[tuple[str, int]] = {
        "ensemble": lambda owned: shown(owned[0]) or "none",
        ">slots": lambda owned: f"{owned[1]:,}",
    }
    table = table_of(columns, sorted(adoption.stored.items()))
    session.overview(asdict(adoption), table, "")
    if not adoption.ensemble or session.json:
        return
    session.note(f"the ensemble of {given[0]} is {adoption.ensemble}; --from ENSEMBLE moves the slots to it")
    if zookeeper is not None and adoption.ensemble in adoption.stored:
        session.note(
            "this ensemble already owns slots; if it was restored from a backup, --from gives it a new identity "
            "before the move"
        )
