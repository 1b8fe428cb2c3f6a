"""What the parts of the coordination hand each other: slots, ownership, nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rmq.errors import InvalidValueError

SlotKey = tuple[str, int]
"""A slot: its topic's name and its number."""

_CHROOT = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._-]+)+")


_WORKER = re.compile(r"(?!\.+$)[A-Za-z0-9._:-]{1,128}")


def check(good: bool, message: str) -> None:
    """Raise `InvalidValueError` with a message, unless a value is good."""
    if not good:
        raise InvalidValueError(message)


def is_worker_name(text: str) -> bool:
    """Tell whether a text may be the name of a worker."""
    return bool(_WORKER.fullmatch(text))


def is_chroot(text: str) -> bool:
    """Tell whether a text is a path below which nodes may lie."""
    return bool(_CHROOT.fullmatch(text))


@dataclass(frozen=True, slots=True)
class Ownership:
    """That this worker owns a slot; handed to every script that changes the slot.

    Args:
        topic: Name of the topic.
        slot: Number of the slot.
        epoch: The owner node's czxid: larger for every later owner of any slot of this ensemble.
        ensemble: Identity of the ZooKeeper ensemble that counts the epochs.

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
    """What ZooKeeper knows of a node."""

    czxid: int  # transaction that created it
    version: int  # how often its data were set
    session: int  # id of the session that an ephemeral node lives with (`ephemeralOwner`), else 0
    mzxid: int = 0  # transaction that has set its data last


@dataclass(frozen=True, slots=True)
class DigestAuth:
    """User and password for ZooKeeper's `digest` scheme; every node is then open to this user only.

    The password crosses the network in clear text: use it with TLS.

    Examples:
        >>> DigestAuth("rmq", "a password")
        DigestAuth(username='rmq')
    """

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslAuth:
    """A SASL login (needs the `pure-sasl` package); every node is then open to this user only.

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
        ca: File with the certificates that sign the servers'; None for the system's.
        cert: File with our certificate, where servers ask for one.
        key: File with our private key.
        key_password: Of the private key, if it has one.
        check_hostname: Whether the servers' names must match their certificates.

    Examples:
        >>> Tls(ca="/etc/zookeeper/ca.pem").ca
        '/etc/zookeeper/ca.pem'
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
