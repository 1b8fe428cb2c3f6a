"""Secrets from the environment: in a variable, or in a file that a variable names, as containers mount them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rmq.errors import InvalidValueError

_MOST_BYTES = 65_536


def secret(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable, or the text of the file that the variable `name` + `_FILE` names, or `None`.

    Raises:
        InvalidValueError: Both are set, or the file cannot be read or is empty.
    """
    value, path = environment.get(name), environment.get(f"{name}_FILE")
    if path is None:
        return value
    if value is not None:
        raise InvalidValueError(f"{name} and {name}_FILE are both set; set one of them")
    return read_secret(Path(path), f"{name}_FILE")


def read_secret(path: Path, name: str) -> str:
    """Return the text of a file, without the line break at its end.

    Raises:
        InvalidValueError: The file, which the setting `name` names, cannot be read, is empty or is longer than 64 KiB.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{name} names the file {str(path)!r}, which cannot be read: {error}") from None
    if not text or len(text) > _MOST_BYTES:
        rule = "is empty" if not text else f"is longer than {_MOST_BYTES} bytes"
        raise InvalidValueError(f"{name} names the file {str(path)!r}, which {rule}")
    return text
