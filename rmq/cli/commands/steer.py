"""`rmq pause`, `resume` and `purge`, what was done and runs: `rmq audit` and `rmq workers`, and `rmq adopt`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from rmq import AuditLine, Coordinator, RmqClient, TopicType
from rmq.cli.console import DEADLINE_S, Columns, Session, cells_of, cut, new_table, table_of
from rmq.cli.options import Group, Limit, Slots, TopicName, Yes
from rmq.errors import InvalidValueError
from rmq.spi import counted, shown, span, zookeeper_access
from rmq.views import documents
from rmq.views.columns import LISTENERS
from rmq.views.words import from_now, when


def pause(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """Stop handing out messages of a topic. Running handlers finish, and sends are still accepted."""
    _pause(session, topic, slots, group, True)


def resume(session: Session, topic: TopicName, slots: Slots = None, group: Group = None) -> None:
    """Resume a paused topic."""
    _pause(session, topic, slots, group, False)


def _pause(session: Session, topic: str, slots: list[int] | None, group: str | None, paused: bool) -> None:
    with session.opened(topic) as (client, definition):
        if group is None:
            control = client.control(definition)
            changed = control.pause(slots) if paused else control.resume(slots)
        elif slots:
            raise InvalidValueError("--group and --slot cannot be combined: a group is paused and resumed on all slots")
        else:
            stream = client.stream(definition)
            changed = stream.pause(group) if paused else stream.resume(group)
    done = "paused" if paused else "resumed"
    document = {"topic": topic, "group": group, "paused": paused, "changed_slots": changed}
    session.result(document, f"{counted(changed, 'slot')} {done}" if changed else f"nothing changed: already {done}")


def purge(
    session: Session,
    topic: TopicName,
    place: Annotated[Literal["store", "retry"], typer.Option()] = "store",
    slots: Slots = None,
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Delete messages permanently, by default the backlog, once the topic's name is confirmed.

    For dead messages, use `rmq dead purge`.

    Options:
        place: State of the messages: store (the backlog), or retry (waiting for a retry).
    """
    with session.opened(topic) as (client, definition):

        def count() -> int:
            stats = client.inspect(definition).stats(slots)
            return min(stats.backlog if place == "store" else stats.waiting, limit or sys.maxsize)

        def agreed(number: int) -> bool:
            return (
                typer.prompt(f"This permanently deletes {counted(number, 'message')}. Type the topic's name", err=True)
                == topic
            )

        def purge_(moved: Callable[[int], None]) -> int:
            control = client.control(definition)
            return control.purge(place, confirm=topic, slots=slots, limit=limit, progress=moved)

        session.drop(yes, count, agreed, purge_)


def audit(
    session: Session,
    topic: TopicName,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    slots: Slots = None,
) -> None:
    """Show the audit log of a topic, newest line first.

    Options:
        limit: Maximum number of lines.
    """
    with session.opened(topic) as (client, definition):
        if definition.type is TopicType.STREAM:
            lines = client.stream(definition).audit(limit)
        else:
            lines = client.inspect(definition).audit(limit, slots)
    columns: Columns[AuditLine] = {
        "when": lambda line: when(line.time_ms)[:19],
        "~who": lambda line: cut(line.actor),
        "what": lambda line: shown(line.action),
        "~on": lambda line: cut(" ".join(map(shown, filter(None, (line.content, line.detail))))),
        "~outcome": lambda line: cut(line.outcome),
    }
    document = partial(documents.picked, names="topic slot time_ms actor action content detail outcome")
    session.rows(lines, document, columns, f"the audit log of topic {topic} is empty")


ALL_COLUMNS = 100
"""Minimum width of a terminal, in characters, to show all columns of `rmq workers`."""


def workers(session: Session) -> None:
    """Show the processes that run listeners, from their last reports (every 5 s).

    handlers: number of handlers that may run in parallel; with Adaptive(), the current limit; "pauses" while the
    listener is paused, "rate" while the topic's rate limit holds messages back. p99: 99 % of the handler calls of the
    last 5 minutes took at most this long. longest: running time of the oldest running handler; "hung" if it exceeded
    its timeout. Below 100 columns, "slots" and "handlers" are left out, and "longest" and "seen" share a column.
    """
    with session.client() as client:
        found = client.workers()
    wide = session.out.width >= ALL_COLUMNS
    names = [">in flight", ">handled/s", ">failed/s", ">p99", ">longest"]
    names = [">slots", ">handlers", *names] if wide else names
    figures = {name: LISTENERS[name] for name in names}
    table = new_table("~worker, topics", *([*names, ">seen"] if wide else [*names[:-1], ">longest, seen"]))
    for worker in found:
        style = "yellow" if worker.stale else None
        blank = [""] * (len(table.columns) - 2)
        table.add_row(cut(worker.name), *blank, from_now(worker.seen_ms, worker.now_ms), style=style)
        for each in worker.listeners:
            name = each.topic if each.group is None else f"{each.topic}@{each.group}"
            table.add_row(cut(f"  {name}"), *cells_of(figures, each), style=style)
    document = {"workers": [documents.worker(each) for each in found]}
    session.overview(document, table if found else None, "no process with running listeners has reported")
    stale = [worker for worker in found if worker.stale]
    if stale and not session.json:
        longest = span(max(worker.silent_ms for worker in stale))
        session.warn(
            f"{counted(len(stale), 'worker has', 'workers have')} not reported for up to {longest} and may have stopped"
        )


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
