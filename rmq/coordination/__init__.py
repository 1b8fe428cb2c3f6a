"""One owner per slot: workers share the slots of their topics through ZooKeeper."""

from rmq.coordination.coordinator import Coordinator
from rmq.coordination.values import DigestAuth, Ownership, SaslAuth, SlotKey, Tls

__all__ = ["Coordinator", "DigestAuth", "Ownership", "SaslAuth", "SlotKey", "Tls"]
