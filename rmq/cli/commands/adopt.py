"""`rmq adopt`: moves a topic's slots to another ZooKeeper ensemble."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rmq import Coordinator, RmqClient
from rmq._ownership.logins import encryption, login
from rmq.cli.console import DEADLINE_S, Columns, Session, table_of
from rmq.cli.options import TopicName, ZooKeeperCa, ZooKeeperCert, ZooKeeperKey, ZooKeeperUser
from rmq.errors import InvalidValueError
from rmq.spi import shown


def adopt(
    session: Session,
    topic: TopicName,
    zookeeper: Annotated[str | None, typer.Option(metavar="HOST:PORT,...")] = None,
    chroot: Annotated[str, typer.Option(metavar="PATH")] = "/rmq",
    zookeeper_user: ZooKeeperUser = None,
    zookeeper_ca: ZooKeeperCa = None,
    zookeeper_cert: ZooKeeperCert = None,
    zookeeper_key: ZooKeeperKey = None,
    no_zookeeper: Annotated[bool, typer.Option("--no-zookeeper")] = False,
    from_ensemble: Annotated[str | None, typer.Option("--from", metavar="ENSEMBLE")] = None,
) -> None:
    """Show which ZooKeeper ensembles own a topic's slots, or move the slots to another ensemble.

    Options:
        zookeeper: The ensemble to move the slots to.
        chroot: Path of RMQ's nodes in the ensemble.
        no_zookeeper: Move the slots to consumers without ZooKeeper.
        from_ensemble: The ensemble to move the slots from. Without it, nothing is changed.
    """
    if from_ensemble is not None and (zookeeper is None) is not no_zookeeper:
        raise InvalidValueError(
            "--from requires the new owner of the slots: either --zookeeper HOST:PORT,... or --no-zookeeper"
        )
    auth = login(zookeeper_user, "--zookeeper-user")
    files = {"--zookeeper-ca": zookeeper_ca, "--zookeeper-cert": zookeeper_cert, "--zookeeper-key": zookeeper_key}
    tls = encryption(files)
    coordinator = None if zookeeper is None else Coordinator(zookeeper, chroot=chroot, auth=auth, tls=tls)
    with RmqClient(session.options.url, zookeeper=coordinator, deadline_s=DEADLINE_S) as client:
        adoption = client.adopt(topic, from_ensemble)
    if from_ensemble is not None:
        there = shown(adoption.ensemble) or "consumers without ZooKeeper"
        moved = f"{adoption.moved:,} of {sum(adoption.stored.values()):,} slots moved to {there}"
        session.result(asdict(adoption), moved)
        return
    columns: Columns[tuple[str, int]] = {
        "ensemble": lambda owned: shown(owned[0]) or "none",
        ">slots": lambda owned: f"{owned[1]:,}",
    }
    table = table_of(columns, sorted(adoption.stored.items()))
    session.overview(asdict(adoption), table, "")
    if zookeeper is None or session.json:
        return
    session.note(f"the ensemble of --zookeeper is {adoption.ensemble}; --from ENSEMBLE moves the slots to it")
    if adoption.ensemble in adoption.stored:
        session.note(
            "this ensemble already owns slots; if it was restored from a backup, --from gives it a new identity "
            "before the move"
        )
