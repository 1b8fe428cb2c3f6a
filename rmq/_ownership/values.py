"""Values of the coordination: slots, ownership, nodes, and logins, which may come from options.

Passwords of options come from the environment or from files. All paths of nodes are relative to the chroot:

/ensemble               identity of this ensemble, a random UUID, written once
/workers/<worker>       ephemeral: host, pid, weight, topics with their slots
/topics/<topic>         the registered definition
/leader                 ephemeral: the worker that writes the assignment
/assignment             the assigned owner of each slot; the node's version is the assignment's
/owners/<topic>/<slot>  ephemeral: the owner of the slot; the node's czxid is the epoch

Documents have a schema version (`_model/schema.py`). A reader ignores one that it cannot read: a topic with an
unreadable definition gets no new owners, a worker with an unreadable node gets no slots, and with an unreadable
assignment all slots stay with their owners until the leader writes another one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rmq._model.display import brief
from rmq._model.schema import new_document, read_document, reading
from rmq._model.settings import is_number
from rmq._servers.urls import secret
from rmq.errors import InvalidValueError, UnreadableDocumentError

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


def check_worker(worker_id: str, session_timeout_s: float, weight: int, drain_timeout_s: float | None) -> None:
    """Raise `InvalidValueError` for settings that no worker can have."""
    good = isinstance(worker_id, str) and is_worker_name(worker_id)  # pyright: ignore[reportUnnecessaryIsInstance]
    check(good, f"worker_id is {worker_id!r}; it must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")
    known = type(weight) is int and 1 <= weight <= 1000
    check(known, f"weight is {weight!r}; it must be a whole number from 1 to 1000")
    timely = is_number(session_timeout_s) and 0 < session_timeout_s <= 86_400
    check(timely, f"session_timeout_s is {brief(session_timeout_s)}; it must be more than 0 and at most 86400")
    timely = drain_timeout_s is None or (is_number(drain_timeout_s) and drain_timeout_s >= 0)
    check(timely, f"drain_timeout_s is {brief(drain_timeout_s)}; it must be 0 or more")


def is_chroot(text: str) -> bool:
    """Return whether a text is a valid parent path for the nodes."""
    return bool(_CHROOT.fullmatch(text))


@dataclass(frozen=True, slots=True)
class Ownership:
    """Proof that this worker owns a slot. Calls that change the slot carry it; Redis refuses those of earlier owners.

    Args:
        topic: Name of the topic.
        slot: Number of the slot.
        epoch: Number of this ownership: the czxid of the owner's node, or with owners in Redis the number of a
            transaction. Every later owner of any slot of this ensemble has a larger one.
        ensemble: Identity of the ensemble that issues the epochs.

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
class RedisOwners:
    """Settings of slot owners that are kept in the Redis of the messages, without ZooKeeper.

    Args:
        session_timeout_s: Seconds without contact, by Redis' clock, after which a worker's slots go to others; 1 to
            86,400. With Sentinel or Redis Cluster, set it above the duration of a failover. Use the same value for all
            workers of a Redis.
        worker_id: Name of this worker, unique among the live workers. A worker that restarts with the same name gets
            its slots back. None generates a name.
        weight: Capacity relative to the other workers, 1 to 1000.
        drain_timeout_s: Seconds that a revoked slot waits for its last handler; then it is handed over regardless. None
            uses the client's drain time.
        replicas: Number of replicas that must confirm an acquisition, so that a failover rarely loses one; 0 to 100.

    Raises:
        InvalidValueError: A value is invalid.

    Examples:
        >>> RedisOwners(session_timeout_s=6, weight=2).session_timeout_s
        6
    """

    session_timeout_s: float = 10.0
    worker_id: str | None = None
    weight: int = 1
    drain_timeout_s: float | None = None
    replicas: int = 0

    def __post_init__(self) -> None:
        check_worker(
            "w" if self.worker_id is None else self.worker_id, self.session_timeout_s, self.weight, self.drain_timeout_s
        )
        text = f"session_timeout_s is {brief(self.session_timeout_s)}; in Redis it must be at least 1"
        check(self.session_timeout_s >= 1, text)
        known = type(self.replicas) is int and 0 <= self.replicas <= 100
        check(known, f"replicas is {brief(self.replicas)}; it must be a whole number from 0 to 100")


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
        username: Name of the user, for DIGEST-MD5.
        password: Password of the user, for DIGEST-MD5.
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
    """Settings of TLS connections to ZooKeeper.

    Args:
        ca: File with the certificates of the servers' authority; None uses the certificates of the system.
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


PASSWORD = "RMQ_ZOOKEEPER_PASSWORD"  # noqa: S105 - the name of a variable
KEY_PASSWORD = "RMQ_ZOOKEEPER_KEY_PASSWORD"  # noqa: S105 - the name of a variable
SYSTEM = "system"
"""Value of the option for the authority's file that stands for the certificates that this machine trusts."""


def zookeeper_access(
    user: str | None, user_option: str, files: Mapping[str, str | None], environment: Mapping[str, str] = os.environ
) -> tuple[DigestAuth | None, Tls | None]:
    """Return login and TLS settings of a connection from options; see `login` and `encryption`."""
    return login(user, user_option, environment), encryption(files, environment)


def login(user: str | None, option: str, environment: Mapping[str, str] = os.environ) -> DigestAuth | None:
    """Return the login of a user; `None` if no user is given.

    Args:
        user: The user name.
        option: Name of the option with the user, for the error.
        environment: Environment variables, of which one has the password.

    Raises:
        InvalidValueError: The environment has no password for the user.
    """
    if user is None:
        return None
    password = secret(PASSWORD, environment)
    check(password is not None, f"{option} needs a password: set the environment variable {PASSWORD}")
    return DigestAuth(user, password or "")


def encryption(files: Mapping[str, str | None], environment: Mapping[str, str] = os.environ) -> Tls | None:
    """Return the TLS settings of a connection; `None` if no option asks for TLS.

    Args:
        files: Names and values of three options: the certificate authority's file, or `system`; the client certificate;
            its key.
        environment: Environment variables, of which one may have the password of the key.

    Raises:
        InvalidValueError: A certificate without its key, a key without its certificate, or a file that does not exist.
    """
    (ca_option, ca), (cert_option, cert), (key_option, key) = files.items()
    check((cert is None) is (key is None), f"{cert_option} and {key_option} must be given together")
    if ca is None and cert is None:
        return None
    for option, path in files.items():
        known = path is None or (option == ca_option and path == SYSTEM) or os.path.isfile(path)
        check(known, f"{option} is {path!r:.200}, but there is no such file")
    return Tls(None if ca == SYSTEM else ca, cert, key, secret(KEY_PASSWORD, environment))


ENSEMBLE = "/ensemble"
WORKERS = "/workers"
TOPICS = "/topics"
LEADER = "/leader"
ASSIGNMENT = "/assignment"
OWNERS = "/owners"


def node_name(topic: str) -> str:
    """Return a topic's name as a node name. ZooKeeper refuses the names `.` and `..`."""
    return topic if topic.strip(".") else topic.replace(".", "%2E")


def topic_name(node: str) -> str:
    """Return the topic of a node name; the inverse of `node_name`."""
    return node.replace("%2E", ".")


def worker_path(worker: str) -> str:
    return f"{WORKERS}/{worker}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{node_name(topic)}"


def owners_path(topic: str) -> str:
    return f"{OWNERS}/{node_name(topic)}"


def owner_path(key: SlotKey) -> str:
    return f"{OWNERS}/{node_name(key[0])}/{key[1]}"


@dataclass(frozen=True, slots=True)
class WorkerDocument:
    """The data of a worker's node."""

    topics: Mapping[str, int]  # consumed topic → its number of slots, as the worker knows it; empty while it leaves
    weight: int = 1  # capacity relative to the other workers
    host: str = ""
    pid: int = 0
    room: int | None = None  # bytes for the paths of its owner nodes; None for no limit
    redis: str = ""  # identity of the Redis whose messages it handles; empty if unknown

    def to_json(self) -> bytes:
        fields = {"host": self.host, "pid": self.pid, "weight": self.weight, "room": self.room, "redis": self.redis}
        return new_document({**fields, "topics": {**self.topics}}).to_json().encode()

    @classmethod
    @lru_cache(maxsize=1024)  # read in every round, changed rarely
    def from_json(cls, data: bytes) -> WorkerDocument:
        """Parse the data of a worker's node.

        Raises:
            UnreadableDocumentError: The data was written for newer versions, or is not that of a worker's node.
        """
        with reading(data, "a worker's node") as fields:
            topics = {str(name): int(slots) for name, slots in fields["topics"].items()}
            weight, host, pid = max(1, int(fields["weight"])), str(fields["host"]), int(fields["pid"])
            room = None if fields["room"] is None else int(fields["room"])
            return cls(topics, weight, host, pid, room, str(fields["redis"]))


def slots_from_definition(data: bytes) -> int:
    """Return the number of slots in a topic's registered definition.

    Raises:
        UnreadableDocumentError: The definition was written for newer versions, or has no valid number of slots.
    """
    slots = read_document(data, "the topic's definition for its owners").fields.get("slots")
    if type(slots) is not int or not 0 < slots <= 1_000_000:
        raise UnreadableDocumentError(
            f"the topic's definition cannot be read: slots is {slots!r:.50}; it must be from 1 to 1,000,000"
        )
    return slots
