"""URLs that say where Redis is. Pure."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rmq.errors import InvalidUrlError

DEFAULT_URL = "embedded://"


class Topology(Enum):
    """How the Redis behind a URL is built."""

    EMBEDDED = "embedded"
    STANDALONE = "standalone"


_SCHEMES = {
    "embedded": Topology.EMBEDDED,
    "redis": Topology.STANDALONE,
    "rediss": Topology.STANDALONE,
    "unix": Topology.STANDALONE,
}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A URL, understood.

    Attributes:
        url: The URL as given.
        topology: What it leads to.
        folder: Folder of a kept embedded Redis; `None` for a temporary one and for the others.
    """

    url: str
    topology: Topology
    folder: Path | None = None

    @property
    def shown(self) -> str:
        """The URL without its password, for messages and logs."""
        return _without_password(self.url)


def parse_url(url: str | None) -> RedisUrl:
    """Understand a URL; without one, `RMQ_URL` from the environment, else `embedded://`.

    Raises:
        InvalidUrlError: An unknown scheme, or a part that the scheme does not take.
    """
    url = url or os.environ.get("RMQ_URL") or DEFAULT_URL
    shown = _without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidUrlError(f"URL {shown!r} cannot be read: {error}") from None
    topology = _SCHEMES.get(parts.scheme)
    if topology is None:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise InvalidUrlError(f"URL {shown!r} has the unknown scheme {parts.scheme!r}; known are {known}")
    if topology is not Topology.EMBEDDED:
        try:
            _ = parts.port
        except ValueError:  # its text may quote a password with a slash in it
            raise InvalidUrlError(
                f"URL {shown!r} has an invalid port; a password with / ? # or @ must be percent-encoded"
            ) from None
        if parts.scheme == "unix" and not parts.path:
            raise InvalidUrlError(f"URL {shown!r} names no socket; write unix:///path/to/redis.sock")
        return RedisUrl(url, topology)
    if parts.netloc or parts.query:
        raise InvalidUrlError(f"URL {shown!r} must be embedded:// (temporary) or embedded:///folder (kept)")
    return RedisUrl(url, topology, Path(unquote(parts.path)) if parts.path else None)


def _without_password(url: str) -> str:
    """Hide passwords by the text alone: also in what is no proper URL, since errors quote it."""
    hidden = re.sub(r"(://[^:@/]*:).*@", r"\1***@", url)
    return re.sub(r"([?&]password=)[^&#]*", r"\1***", hidden)
