"""The jobs of `rmq spark`, one module each: functions of a session and settings, which other programs can call, too.

A job is `run(session, settings, say=nothing) -> Report`. Settings and report are frozen dataclasses. `say` is called
with a line of text when a step begins. A job does not depend on the command line, and does not start or stop Spark. Its
command is in `rmq/cli/commands/spark/app.py`, its program for `spark-submit` is `examples/spark_<job>.py`.

Errors of Spark contain Python and Java tracebacks. Here they are reduced to one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException

from rmq.errors import InvalidValueError, RmqError

Say = Callable[[str], None]
"""Called with a line of text when a step begins."""


def nothing(step: str) -> None:
    """Ignore a line: the default of `say`."""


def _spark_errors() -> tuple[type[Exception], ...]:
    try:
        from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:  # a client of Spark Connect has no JVM
        return (PySparkException,)
    return PySparkException, Py4JError


SPARK_ERRORS = _spark_errors()
"""The exceptions that Spark raises."""

# as the last line of a Python traceback names it
_OURS = re.compile(r"^rmq\.(\w+): (.*)", re.MULTILINE)
_LAST_PYTHON = re.compile(r"^([\w.]+(?:Error|Exception)): (.*)", re.MULTILINE)
# a Java exception without a class in PySpark; the name of the failed call says nothing
_JAVA = re.compile(r"An error occurred while calling [^\n]*\n: (?:([\w.$]+)(?:: |$))?(.*)", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)", re.MULTILINE)
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r" SQLSTATE: \w+")


def one_line(error: Exception) -> str:
    """Return the message of an error of Spark in one line; the message of RMQ's error if a Python worker raised one."""
    text = str(error)
    if found := list(_OURS.finditer(text)):
        return found[-1][2]
    if "Traceback (most recent call last)" in text and (found := list(_LAST_PYTHON.finditer(text))):
        return found[-1][2]
    if found := _JAVA.match(text):
        first = found[2] or found[1]
    else:
        first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    said = _plain(first)
    if "FAILED_READ_FILE" in first and (cause := _CAUSE.search(text)):  # names the file only
        said = f"{said} {_plain(cause[1])}"
    return said


def _plain(line: str) -> str:
    return _STATE.sub("", _ERROR_CLASS.sub("", line)).strip()


@contextmanager
def plain_errors() -> Generator[None]:
    """Convert errors of Spark into errors of RMQ with the same message in one line.

    Raises:
        InvalidValueError: A file, a column or a value is invalid.
        RmqError: Any other error.
    """
    try:
        yield
    except AnalysisException as error:
        raise InvalidValueError(one_line(error)) from error
    except SPARK_ERRORS as error:
        wrong_input = any(match[1].startswith("Invalid") for match in _OURS.finditer(str(error)))
        raise (InvalidValueError if wrong_input else RmqError)(one_line(error)) from error
