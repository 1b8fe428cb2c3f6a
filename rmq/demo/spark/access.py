"""How the audience job reaches ZooKeeper: its own workers by a coordinator, Spark's query by options."""

from __future__ import annotations

from dataclasses import dataclass

from rmq._ownership import Coordinator
from rmq._ownership.logins import encryption, login
from rmq.errors import InvalidValueError
from rmq.spark import option_kinds as kinds

NODES = "/rmq"
"""Where RMQ's nodes lie in ZooKeeper by default."""


@dataclass(frozen=True)
class ZooKeeperAccess:
    """The servers, and the login and the certificates that they ask for.

    Passwords come from the variables `RMQ_ZOOKEEPER_PASSWORD` and `RMQ_ZOOKEEPER_KEY_PASSWORD`.

    Attributes:
        hosts: Servers as `host:port`, separated by commas.
        chroot: Path below which RMQ's nodes lie.
        user: Login, in the `digest` scheme.
        ca: A file with the certificates that sign the servers', or `system`.
        cert: A file with our certificate.
        key: A file with its key.
    """

    hosts: str
    chroot: str = NODES
    user: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        kinds.hosts(self.hosts, "zookeeper")
        kinds.chroot(self.chroot, "chroot")
        self.coordinator()

    def coordinator(self) -> Coordinator:
        """Return a coordinator that has not been started.

        Raises:
            InvalidValueError: A password is missing, a file is not there, or a certificate comes without its key.
        """
        files = {"zookeeper_ca": self.ca, "zookeeper_cert": self.cert, "zookeeper_key": self.key}
        auth = login(self.user, "zookeeper_user")
        return Coordinator(self.hosts, chroot=self.chroot, auth=auth, tls=encryption(files))

    def options(self) -> dict[str, str]:
        """Return the options of a stream that owns slots."""
        said = {
            "zookeeper": self.hosts, "zookeeperChroot": self.chroot, "zookeeperUser": self.user,
            "zookeeperCa": self.ca, "zookeeperCert": self.cert, "zookeeperKey": self.key,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}


def access_of(
    hosts: str | None = None,
    chroot: str = NODES,
    user: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
) -> ZooKeeperAccess | None:
    """Return how to reach ZooKeeper; `None` without servers.

    Raises:
        InvalidValueError: Something is said of ZooKeeper, and no servers are named; or as `ZooKeeperAccess`.
    """
    if hosts is not None:
        return ZooKeeperAccess(hosts, chroot, user, ca, cert, key)
    rest = {"chroot": None if chroot == NODES else chroot, "zookeeper_user": user, "zookeeper_ca": ca,
            "zookeeper_cert": cert, "zookeeper_key": key}  # fmt: skip
    for name, value in rest.items():
        if value is not None:
            raise InvalidValueError(f"{name} is {value!r} without zookeeper: give its servers, as zk1:2181")
    return None
