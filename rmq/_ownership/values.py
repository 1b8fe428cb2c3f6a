"""Values of the coordination: slots, ownership, nodes and logins."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rmq.errors import InvalidValueError

SlotKey = tuple[str, int]
"""A slot: topic name and slot number."""

_CHROOT = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._-]+)+")


_WORKER = re.compile(r"(?!\.+$)[A-Za-z0-9._:-]{1,128}")


def check(good: bool, message: str) -> None:
    """Raise `InvalidValueError` with a message unless `good`."""
    if not good:
        raise InvalidValueError(message)


def is_worker_name(text: str) -> bool:
    """Return whether a text is a valid worker name."""
    return bool(_WORKER.fullmatch(text))


def is_chroot(text: str) -> bool:
    """Return whether a text is a valid parent path for the nodes."""
    return bool(_CHROOT.fullmatch(text))


@dataclass(frozen=True, slots=True)
class Ownership:
    """Proof that this worker owns a slot. Every script that changes the slot takes it.

    Args:
        topic: Name of the topic.
        slot: Number of the slot.
        epoch: The owner node's czxid. Every later owner of any slot of this ensemble has a larger one.
        ensemble: Identity of the ZooKeeper ensemble that issues the epochs.

    Examples:
        >>> Ownership("jobs", slot=3, epoch=7, ensemble="e1").epoch
        7
    """

    topic: str
    slot: int
    epoch: int
    ensemble: str


@dataclass(frozen=True, slots=True)
class Stat:
    """Metadata of a ZooKeeper node."""

    czxid: int  # transaction that created it
    version: int  # number of times its data was set
    session: int  # session id of an ephemeral node (`ephemeralOwner`), else 0
    mzxid: int = 0  # transaction that last set its data


@dataclass(frozen=True, slots=True)
class DigestAuth:
    """User and password for ZooKeeper's `digest` scheme. All nodes are then accessible to this user only.

    The password is sent in clear text, so use it with TLS.

    Examples:
        >>> DigestAuth("rmq", "a password")
        DigestAuth(username='rmq')
    """

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslAuth:
    """A SASL login, which needs the `pure-sasl` package. All nodes are then accessible to this user only.

    Args:
        mechanism: `DIGEST-MD5` or `GSSAPI`.
        username: For DIGEST-MD5.
        password: For DIGEST-MD5.
        service: The servers' service name, for GSSAPI.
        principal: The client's principal, for GSSAPI.

    Examples:
        >>> SaslAuth(username="rmq", password="a password").mechanism
        'DIGEST-MD5'
    """

    mechanism: str = "DIGEST-MD5"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = "zookeeper"
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to ZooKeeper.

    Args:
        ca: File with the certificates of the servers' authority; None for the system's.
        cert: File with the client certificate, if the servers require one.
        key: File with the private key of the client certificate.
        key_password: Password of the private key, if it has one.
        check_hostname: True if the servers' names must match their certificates.

    Examples:
        >>> Tls(ca="/etc/zookeeper/ca.pem").ca
        '/etc/zookeeper/ca.pem'
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
