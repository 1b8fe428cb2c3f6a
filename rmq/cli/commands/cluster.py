"""`rmq cluster`: runs the cluster of docker-compose.yml on this machine, without Docker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rmq.cli.console import FAILED, Session, make_group, register
from rmq.errors import InvalidValueError
from rmq.spi import cluster_down, cluster_status, cluster_up, shown
from rmq.views.documents import picked

Folder = Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Folder for the state of the cluster.")]
DEFAULT_FOLDER = Path("rmq-cluster")

cluster_app = make_group("Run a Redis Cluster, ZooKeeper servers, workers and a demo producer on this machine.")


def up(
    session: Session,
    folder: Folder = DEFAULT_FOLDER,
    workers: Annotated[int, typer.Option(min=0, max=64, metavar="N")] = 2,
    producer: Annotated[bool, typer.Option()] = True,
    first_port: Annotated[int | None, typer.Option(min=1024, max=55000, metavar="PORT")] = None,
    owners: Annotated[Literal["zookeeper", "redis"], typer.Option()] = "zookeeper",
) -> None:
    """Start the cluster in the background, with the data of an earlier run if there are any.

    Options:
        workers: Number of worker processes.
        producer: Run the demo producer.
        first_port: First of 15 consecutive ports. Default: free ports.
        owners: Where the owners of slots are kept. With redis, no ZooKeeper servers are started.
    """
    state = cluster_up(folder, workers=workers, producer=producer, first_port=first_port, owners=owners)
    _show(session, folder, state)


def down(
    session: Session,
    folder: Folder = DEFAULT_FOLDER,
    delete: Annotated[bool, typer.Option("--delete")] = False,
) -> None:
    """Stop all processes of the cluster. Its data are kept for the next `up`.

    Options:
        delete: Also delete the folder and all data.
    """
    running = cluster_down(folder, delete=delete)
    session.result({"was_running": running, "deleted": delete}, "stopped" if running else "the cluster was not running")


def status(session: Session, folder: Folder = DEFAULT_FOLDER) -> int:
    """Show the processes of the cluster and their addresses. Exit code 1: the cluster is not running."""
    state = cluster_status(folder)
    if state is None:
        raise InvalidValueError(f"folder {folder} has no cluster; `rmq cluster up --folder {folder}` starts one")
    _show(session, folder, state)
    return 0 if state.phase == "ready" else FAILED


def _show(session: Session, folder: Path, state: Any) -> None:
    processes = sorted(state.processes, key=lambda process: process.name)
    if session.json:
        rows = [picked(each, "name pid address starts") for each in processes]
        session.document({**picked(state, "phase environment"), "folder": str(folder), "processes": rows})
        return
    session.line(shown(str(folder)), f": {state.phase}")
    for each in processes:
        running = f"pid {each.pid}" if each.pid else "not running"
        again = f", started {each.starts} times" if each.starts > 1 else ""
        session.line(f"  {each.name:<12} {each.address:<16} {running}{again}")
    for name, value in state.environment.items():
        session.line(f"export {name}={value}")


register(cluster_app, up, down, status)
