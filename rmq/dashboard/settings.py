"""How the dashboard is reached, and by whom."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from rmq.errors import InvalidValueError

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8642


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who may see the pages.

    Attributes:
        user: Name, without a colon.
        password: Password, not empty.
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user or not self.password:
            raise InvalidValueError("credentials need a user without a colon and a password that is not empty")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the dashboard is reached.

    Attributes:
        host: Address to listen on. Any but a loopback address needs credentials.
        port: Port to listen on; 0 for any that is free.
        credentials: Who may see the pages; `None` for everybody on this machine.
        read_only: Show everything, change nothing.
        names: Host names under which the pages may be asked for, beside `localhost` and addresses.

    Raises:
        InvalidValueError: An address other than a loopback one, and no credentials.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    credentials: Credentials | None = None
    read_only: bool = False
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(name.lower().rstrip(".") for name in self.names))
        if self.credentials is None and not is_loopback(self.host):
            raise InvalidValueError(
                f"host is {self.host}: other machines can reach it, and without a login they can purge topics; "
                "name a user and a password first"
            )

    def allows(self, host_header: str) -> bool:
        """Return whether a request that names this host is meant for us.

        A page elsewhere can lead its own name to our address (DNS rebinding); it can't do so with an address.
        """
        name = host_header.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0].rstrip(".")
        return name == "localhost" or name in self.names or _is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
