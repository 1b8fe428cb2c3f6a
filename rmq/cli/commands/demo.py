"""What runs on one machine, to try RMQ: `rmq demo`, `rmq cluster` and `rmq bench`.

`rmq demo` replays a day of real orders, with live figures and a check at the end. `rmq cluster` runs the cluster of
docker-compose.yml without Docker. `rmq bench` runs a benchmark of the checkout that this package is installed from.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import rmq
from rmq.cli.console import FAILED, Columns, Session, make_group, register
from rmq.errors import InvalidValueError
from rmq.spi import cluster_down, cluster_status, cluster_up, shown
from rmq.views.documents import picked

Folder = Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="Folder for the state of the cluster.")]
DEFAULT_FOLDER = Path("rmq-cluster")

cluster_app = make_group("Run a Redis Cluster, ZooKeeper servers, workers and a demo producer on this machine.")


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


def bench(
    session: Session,
    name: Annotated[str | None, typer.Argument()] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]")] = None,
    quick: Annotated[bool, typer.Option("--quick")] = False,
) -> int | None:
    """Run a benchmark. Requires a checkout of the repository, and the extra `bench`.

    Options:
        name: Name of the benchmark. Default: list the benchmarks.
        arguments: Options of the benchmark, such as -- --number 1000.
        quick: Use small sizes and fewer repeats, for a first look.
    """
    names = benchmark_names()
    if name is None:
        found = {each: _subject(each) for each in names}
        columns: Columns[str] = {"benchmark": str, "measures": lambda each: found[each]}
        session.rows(names, lambda each: {"benchmark": each, "measures": found[each]}, columns, "")
        return None
    if name not in names:
        raise InvalidValueError(f"unknown benchmark {name!r}; the benchmarks are {', '.join(names)}")
    main: Callable[[], int | None] = importlib.import_module(f"benchmarks.{name}").main
    sys.argv = [f"rmq bench {name}", *(arguments or ()), *(["--quick"] if quick else [])]
    sys.argv += ["--json"] if session.json else []
    return main()


def _subject(name: str) -> str:
    """Return the first line of a benchmark's docstring, without importing the benchmark."""
    source = _folder() / name
    path = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def benchmark_names() -> list[str]:
    """Return the names of the benchmarks.

    Raises:
        InvalidValueError: The package is not installed from a checkout, which has the benchmarks.
    """
    folder = _folder()
    if not (folder / "support").is_dir():
        raise InvalidValueError(
            "the benchmarks are not part of the installed package: clone the repository, install it with "
            "`pip install -e '.[bench]'`, and run the command there"
        )
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__main__.py")}
    return sorted(modules - {"__init__"})


def _folder() -> Path:
    return Path(rmq.__file__).resolve().parent.parent / "benchmarks"
