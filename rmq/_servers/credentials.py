"""Secrets from the environment, in a variable or in a file that it names, as containers mount them; and credentials."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import CredentialProvider, exceptions

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


class Credentials(CredentialProvider):
    """The credentials of a provider of the program, asked for at each connection.

    A provider that fails is like a server that cannot be reached: the call is repeated until its deadline.

    Args:
        provider: The program's provider.
    """

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        """Return the username and password, or the password alone."""
        try:
            return self._provider.get_credentials()
        except Exception as error:
            raise _no_credentials(error) from error

    async def get_credentials_async(self) -> Any:
        """Return the same without blocking the event loop: a provider that is not asynchronous runs in a thread."""
        method = getattr(type(self._provider), "get_credentials_async", None)  # one of another base may have none
        if method in (None, CredentialProvider.get_credentials_async):
            return await asyncio.to_thread(self.get_credentials)
        try:
            return await self._provider.get_credentials_async()
        except Exception as error:
            raise _no_credentials(error) from error


def _no_credentials(error: Exception) -> exceptions.ConnectionError:
    return exceptions.ConnectionError(f"the credential provider raised {type(error).__name__}: {error}")
