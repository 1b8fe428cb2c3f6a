"""Address and access settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq.errors import InvalidValueError
from rmq.spi import is_loopback

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8642


@dataclass(frozen=True, slots=True)
class Credentials:
    """Login for the pages.

    Attributes:
        user: Name of the user, not empty, without a colon.
        password: Password, not empty.
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user or not self.password:
            raise InvalidValueError("credentials must have a user name without a colon, and a password")


@dataclass(frozen=True, slots=True)
class Settings:
    """Address and access settings of the dashboard.

    Attributes:
        host: Address to listen on. Credentials are required unless it is a loopback address.
        port: Port to listen on; 0 for any free port.
        credentials: Login for the pages; with `None`, all users of this machine have access, and no others.
        read_only: Disable all actions.
        names: Allowed host names, in addition to `localhost` and IP addresses.

    Raises:
        InvalidValueError: The address is not a loopback address, and there are no credentials.
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
                f"host is {self.host}, which other machines can reach; without a login, anyone there could use the "
                "dashboard: set a user and a password"
            )
