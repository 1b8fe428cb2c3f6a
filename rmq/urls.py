"""URLs that say where Redis is. Pure."""

from __future__ import annotations

import os
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
        parts = urlsplit(self.url)
        if parts.password is None:
            return self.url
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{parts.username or ''}:***@{host}").geturl()


def parse_url(url: str | None) -> RedisUrl:
    """Understand a URL; without one, `RMQ_URL` from the environment, else `embedded://`.

    Raises:
        InvalidUrlError: An unknown scheme, or a part that the scheme does not take.
    """
    url = url or os.environ.get("RMQ_URL") or DEFAULT_URL
    parts = urlsplit(url)
    topology = _SCHEMES.get(parts.scheme)
    if topology is None:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise InvalidUrlError(f"URL {url!r} has the unknown scheme {parts.scheme!r}; known are {known}")
    if topology is not Topology.EMBEDDED:
        try:
            _ = parts.port
        except ValueError as error:
            raise InvalidUrlError(f"URL {url!r} has an invalid port: {error}") from None
        if parts.scheme == "unix" and not parts.path:
            raise InvalidUrlError(f"URL {url!r} names no socket; write unix:///path/to/redis.sock")
        return RedisUrl(url, topology)
    if parts.netloc or parts.query:
        raise InvalidUrlError(f"URL {url!r} must be embedded:// (temporary) or embedded:///folder (kept)")
    return RedisUrl(url, topology, Path(unquote(parts.path)) if parts.path else None)
