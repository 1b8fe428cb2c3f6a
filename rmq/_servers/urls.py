"""Parses the URLs of Redis, and reads secrets: from the environment, a file that a variable names, or a provider."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis import CredentialProvider, exceptions

from rmq.errors import InvalidUrlError, InvalidValueError

DEFAULT_URL = "embedded://"
URL_VARIABLE = "RMQ_URL"
URL_FORMS = (
    "redis://host:6379; or embedded:///folder, a Redis that RMQ starts and whose data stay in the folder; or "
    "embedded://, a temporary one for this process alone"
)
"""The usual forms of a URL, for errors."""
REDIS_PORT, SENTINEL_PORT = 6379, 26379


class Topology(Enum):
    """Kind of the Redis deployment behind a URL."""

    EMBEDDED = "embedded"
    STANDALONE = "standalone"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "embedded": Topology.EMBEDDED,
    "redis": Topology.STANDALONE,
    "rediss": Topology.STANDALONE,
    "unix": Topology.STANDALONE,
    "redis+sentinel": Topology.SENTINEL,
    "rediss+sentinel": Topology.SENTINEL,
    "redis+cluster": Topology.CLUSTER,
    "rediss+cluster": Topology.CLUSTER,
}


_HOST_NAME = re.compile(r"([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_ENCODE = "a password with / ? # or @ must be percent-encoded"


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(host: object, port: object) -> Address:
    """Return an address from a server's reply, which may be invalid.

    Raises:
        ValueError: It is not an address.
    """
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if isinstance(port, bytes) and len(port) <= 5 and port.isdigit():
        port = int(port)
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65_536:
        raise ValueError(f"{host!r:.100} with port {port!r:.100} is not an address; a port is 1 to 65535")
    if ":" in host:
        ip_address(host)
    elif len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r:.100} is not a valid host name; it must be 1 to 253 characters of A-Z a-z 0-9 . _ -")
    return Address(host, port)


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


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL.

    Attributes:
        url: The URL as text.
        topology: Kind of the deployment.
        folder: Data folder of an embedded Redis; `None` for a temporary one and for other deployments.
        hosts: The Sentinels, or some nodes of the cluster; empty for other deployments.
        service: Name of the master that the Sentinels watch; empty for other deployments.
        chosen: Whether an argument or `RMQ_URL` set it; `False` for the default.
        credentials: Username and password of data servers, instead of those in the URL.
    """

    url: str
    topology: Topology
    folder: Path | None = None
    hosts: tuple[Address, ...] = ()
    service: str = ""
    chosen: bool = True
    credentials: Credentials | None = field(default=None, repr=False)

    @property
    def temporary(self) -> bool:
        """Whether it is an embedded Redis without a data folder, whose messages are lost when its clients close."""
        return self.topology is Topology.EMBEDDED and self.folder is None

    @property
    def shown(self) -> str:
        """The URL without its passwords, for messages and logs."""
        return _without_password(self.url)

    def with_credentials(self, provider: CredentialProvider | None) -> RedisUrl:
        """Return a URL whose data servers get the username and password of a provider.

        Raises:
            InvalidValueError: It is not a credential provider, or the URL has a login, or is an embedded Redis.
        """
        if provider is None:
            return self
        if not callable(getattr(provider, "get_credentials", None)):
            raise InvalidValueError(f"credentials is {provider!r:.100}; it must be a redis.CredentialProvider")
        if self.topology is Topology.EMBEDDED:
            raise InvalidValueError("credentials are for a Redis server; an embedded Redis has no users")
        parts = _split(self.url)
        if "@" in parts.netloc or {"username", "password"} & dict(parse_qsl(parts.query)).keys():
            raise InvalidValueError(f"URL {self.shown!r} has a login, and credentials is set; set one of them")
        return replace(self, credentials=Credentials(provider))

    def server_url(self, address: Address) -> str:
        """Return the `redis://` URL of one data server behind a Sentinel or cluster URL."""
        parts = _split(self.url)
        userinfo, at, _ = parts.netloc.rpartition("@")
        path = f"/{_database(parts)}" if self.topology is Topology.SENTINEL else ""
        query = urlencode([pair for pair in parse_qsl(parts.query) if not pair[0].startswith("sentinel_")])
        return SplitResult(parts.scheme.partition("+")[0], f"{userinfo}{at}{address}", path, query, "").geturl()

    def sentinel_url(self, address: Address) -> str:
        """Return the `redis://` URL of one Sentinel, with `sentinel_username` and `sentinel_password` if present."""
        parts = _split(self.url)
        pairs = parse_qsl(parts.query)
        query = [pair for pair in pairs if not pair[0].startswith("sentinel_")]
        query += [(key.removeprefix("sentinel_"), value) for key, value in pairs if key.startswith("sentinel_")]
        return SplitResult(parts.scheme.partition("+")[0], str(address), "", urlencode(query), "").geturl()


def _split(url: str) -> SplitResult:
    """Split a URL. Newer versions of `urlsplit` reject several hosts with IPv6 addresses, so they are cut out."""
    scheme, separator, rest = url.partition("://")
    if not separator or "+" not in scheme:
        return urlsplit(url)
    ends = [position for sign in "/?#" if (position := rest.find(sign)) >= 0]
    hosts = rest[: min(ends, default=len(rest))]
    if hosts.count("[") != hosts.count("]"):
        raise ValueError("Invalid IPv6 URL")
    return urlsplit(f"{scheme}://{rest[len(hosts) :]}")._replace(netloc=hosts)


def parse_url(url: str | None) -> RedisUrl:
    """Parse a URL; `None` uses `RMQ_URL`, or the file `RMQ_URL_FILE`, or else `embedded://` with `chosen` False.

    Raises:
        InvalidUrlError: It is not a text, is empty, has an unknown scheme, or a part that the scheme does not support.
    """
    if url is None and (url := secret(URL_VARIABLE)) is None:
        return RedisUrl(DEFAULT_URL, Topology.EMBEDDED, chosen=False)
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] - its value may be a password
        raise InvalidUrlError(f"the URL is of type {type(url).__name__}; it must be a str: {URL_FORMS}")
    if not url.strip():  # such as ${REDIS_URL} in a Compose file if the variable is not set
        named = "url is" if os.environ.get(URL_VARIABLE) != url else f"{URL_VARIABLE} is set, but"
        raise InvalidUrlError(f"{named} empty; set it to the URL of a Redis: {URL_FORMS}")
    return _parse(url)


def _scheme_of(scheme: str) -> str:
    return f"the unknown scheme {scheme!r}" if scheme else "no scheme"


def _parse(url: str) -> RedisUrl:
    shown = _without_password(url)
    try:
        parts = _split(url)
    except ValueError:  # its text may quote a password
        raise InvalidUrlError(f"URL {shown!r} cannot be read; {_ENCODE}") from None
    topology = _SCHEMES.get(parts.scheme)
    if topology not in (None, Topology.EMBEDDED) and "://" not in url:
        form = "unix:///path/to/redis.sock" if parts.scheme == "unix" else f"{parts.scheme}://host"
        raise InvalidUrlError(f"URL {shown!r} lacks // after its scheme; write {form}")
    if topology is None:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        guess = "" if "://" in url else f"; did you mean redis://{shown}?"
        raise InvalidUrlError(f"URL {shown!r} has {_scheme_of(parts.scheme)}{guess}; known schemes are {known}")
    if topology is not Topology.EMBEDDED and _cut_short(parts):
        raise InvalidUrlError(f"URL {shown!r} has an @ after its host; {_ENCODE}")
    if topology is Topology.SENTINEL:
        return _sentinel(url, parts)
    if topology is Topology.CLUSTER:
        if parts.path.strip("/") not in ("", "0"):
            raise InvalidUrlError(f"URL {shown!r} names a database; a Redis Cluster has only database 0")
        return RedisUrl(url, topology, hosts=_hosts(url, parts, REDIS_PORT))
    if topology is Topology.STANDALONE:
        return _standalone(url, parts)
    if parts.netloc or parts.query:
        raise InvalidUrlError(f"URL {shown!r} must be embedded:// (temporary) or embedded:///folder (kept)")
    return RedisUrl(url, topology, Path(unquote(parts.path)) if parts.path else None)


def chosen_url(url: str | None) -> RedisUrl:
    """Parse a URL for a program such as `rmq worker`, for which a temporary Redis would be useless.

    Raises:
        InvalidUrlError: Neither `url` nor `RMQ_URL` is set; otherwise as `parse_url`.
    """
    parsed = parse_url(url)
    if not parsed.chosen:
        raise InvalidUrlError(f"no Redis URL is set; set {URL_VARIABLE}: {URL_FORMS}")
    return parsed


def _standalone(url: str, parts: SplitResult) -> RedisUrl:
    try:
        _ = parts.port
    except ValueError:  # its text may quote a password with a slash in it
        raise InvalidUrlError(
            f"URL {_without_password(url)!r} has an invalid port; it must be from 1 to 65535, and {_ENCODE}"
        ) from None
    if parts.scheme == "unix" and not parts.path:
        raise InvalidUrlError(f"URL {_without_password(url)!r} names no socket; write unix:///path/to/redis.sock")
    if parts.scheme != "unix" and not re.fullmatch("(/[0-9]*)?/?", parts.path):
        raise InvalidUrlError(f"URL {_without_password(url)!r} has an invalid database; write redis://host:6379/0")
    return RedisUrl(url, Topology.STANDALONE)


def _cut_short(parts: SplitResult) -> bool:
    """Return whether a special character in a password seems to have cut off the host of a URL."""
    path = "" if parts.scheme == "unix" else parts.path
    return "@" in path + parts.fragment or ("@" in parts.query and parts.netloc.startswith(":"))


def _sentinel(url: str, parts: SplitResult) -> RedisUrl:
    service = unquote(parts.path.strip("/").partition("/")[0])
    if not service:
        raise InvalidUrlError(
            f"URL {_without_password(url)!r} names no service; write redis+sentinel://host1,host2/service"
        )
    if not _database(parts).isdecimal():
        raise InvalidUrlError(f"URL {_without_password(url)!r} has an invalid database; write .../{service}/0")
    return RedisUrl(url, Topology.SENTINEL, hosts=_hosts(url, parts, SENTINEL_PORT), service=service)


def _database(parts: SplitResult) -> str:
    return parts.path.strip("/").partition("/")[2] or "0"


def _hosts(url: str, parts: SplitResult, default_port: int) -> tuple[Address, ...]:
    addresses: list[Address] = []
    for item in parts.netloc.rpartition("@")[2].split(","):
        try:
            one = urlsplit(f"//{item}")
            addresses.append(Address(one.hostname or "", one.port or default_port))
        except ValueError:  # its text may quote a password
            raise InvalidUrlError(f"URL {_without_password(url)!r} has an invalid host or port; {_ENCODE}") from None
        if not addresses[-1].host:
            raise InvalidUrlError(f"URL {_without_password(url)!r} lacks a host; write host1:port,host2:port")
    return tuple(addresses)


def _without_password(url: str) -> str:
    """Hide passwords in the text of a URL, even in an invalid one, since errors quote it."""
    hidden = re.sub(r"(//[^:@/]*:).*@", r"\1***@", url)
    hidden = re.sub(r"(//[^:@/\[]*:)(?=[^/?#@,]*[^\d/?#@,])[^/?#@]*", r"\1***", hidden)  # no port: a host is missing
    return re.sub(r"([?&](?:sentinel_)?password=)[^&#]*", r"\1***", hidden)
