"""One owner per slot: workers share the slots of their topics through Redis or ZooKeeper."""

from rmq._ownership.coordinator import DRAIN_S, Coordinator
from rmq._ownership.values import DigestAuth, Ownership, RedisOwners, SaslAuth, SlotKey, Tls

__all__ = ["DRAIN_S", "Coordinator", "DigestAuth", "Ownership", "RedisOwners", "SaslAuth", "SlotKey", "Tls"]
