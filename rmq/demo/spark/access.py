"""ZooKeeper access of the audience job: a coordinator for its worker, options for Spark's query."""

from __future__ import annotations

from dataclasses import dataclass

from rmq._ownership import Coordinator
from rmq._ownership.logins import encryption, login
from rmq.errors import InvalidValueError
from rmq.spark import option_kinds as kinds

NODES = "/rmq"
"""Default parent path of RMQ's nodes in ZooKeeper."""


@dataclass(frozen=True)
class ZooKeeperAccess:
    """Servers of ZooKeeper, with login and certificates.

    Passwords come from the environment variables `RMQ_ZOOKEEPER_PASSWORD` and `RMQ_ZOOKEEPER_KEY_PASSWORD`.

    Attributes:
        hosts: Servers as `host:port`, separated by commas.
        chroot: Parent path of RMQ's nodes.
        user: User of the `digest` scheme.
        ca: File with the certificates of the servers' authority, or `system`.
        cert: File with the client certificate.
        key: File with its private key.
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
        """Return a new coordinator, not started.

        Raises:
            InvalidValueError: A password, a file or the key of a certificate is missing.
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
    """Return the access to ZooKeeper; `None` without servers.

    Raises:
        InvalidValueError: Other arguments are given without servers; or as `ZooKeeperAccess`.
    """
    if hosts is not None:
        return ZooKeeperAccess(hosts, chroot, user, ca, cert, key)
    rest = {"chroot": None if chroot == NODES else chroot, "zookeeper_user": user, "zookeeper_ca": ca,
            "zookeeper_cert": cert, "zookeeper_key": key}  # fmt: skip
    for name, value in rest.items():
        if value is not None:
            raise InvalidValueError(
                f"{name} is {value!r}, but zookeeper is not set; set it to ZooKeeper's servers, such as zk1:2181"
            )
    return None
