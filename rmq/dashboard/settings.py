"""How the dashboard is reached, and by whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq._model.hosts import is_local_name, is_loopback, named_host
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
        credentials: Who may see the pages; `None` for everybody on this machine, and nobody elsewhere.
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
        """Return whether a request that names this host is meant for us; see `rmq._model.hosts`."""
        name = named_host(host_header)
        return name in self.names or is_local_name(name)
