"""`rmq bench`: runs a benchmark of the checkout that this package is installed from."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import rmq
from rmq.cli.console import Columns, Session
from rmq.errors import InvalidValueError


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
