"""The slots of a stream topic in the eyes of one consumer of one group: the only caller of scripts that write there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from rmq import control_calls, stream_calls
from rmq.calls import MAX_BATCH, RENEWAL_PATIENCE_S, Ack, Call, Nack, Renewal, WholeClaim
from rmq.connections import Connections
from rmq.delivery import Delivery, Holder
from rmq.errors import RmqError
from rmq.exchange import raise_first
from rmq.ownership import NO_OWNER, Owner
from rmq.results import ClaimReply, ExtendReply, Redriven
from rmq.slot import NACK_BATCH
from rmq.stream_calls import Member, StreamClaimReply
from rmq.stream_values import StreamClaimed, StreamDelivery, Trimmed
from rmq.topics import Topic

log = logging.getLogger("rmq.streams")

SLOTS_PER_ROUND = 256
"""Slots asked in one round trip."""

SHOWN_IDS = 10


class StreamWriter:
    """Changes the slots of one stream topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
    """

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    def join(self, group: str, start: str, slots: Iterable[int] | None = None) -> None:
        """Register a group on all slots, or the given ones; where it is registered, it stays where it is.

        Raises:
            TooManyGroupsError: The topic has its most groups.
        """
        wanted = list(range(self.topic.slots) if slots is None else slots)
        for first in range(0, len(wanted), SLOTS_PER_ROUND):
            part = wanted[first : first + SLOTS_PER_ROUND]
            joins = [stream_calls.join(self.topic, slot, group, start) for slot in part]
            raise_first(self._connections.run_many(joins))

    def drop_group(self, group: str) -> bool:
        """Remove a group with all that it has; return whether it was there."""
        found = False
        for first in range(0, self.topic.slots, SLOTS_PER_ROUND):
            last = min(first + SLOTS_PER_ROUND, self.topic.slots)
            answers = self._connections.run_many(
                [stream_calls.drop_group(self.topic, slot, group) for slot in range(first, last)]
            )
            raise_first(answers)
            found = found or any(answers)
        return found

    def pause(self, group: str, paused: bool, actor: str, detail: str) -> int:
        """Pause or resume a group on all slots; return on how many that changed it. Atomic per slot; safe to repeat."""
        changed = 0
        for first in range(0, self.topic.slots, SLOTS_PER_ROUND):
            part = range(first, min(first + SLOTS_PER_ROUND, self.topic.slots))
            answers = self._connections.run_many(
                [
                    control_calls.pause(
                        self.topic, slot, paused, self._connections.publish, "" if slot else actor, detail, group
                    )
                    for slot in part
                ]
            )
            raise_first(answers)
            changed += sum(answers)
        return changed

    def trim(self, slot: int, *, now: bool = False) -> Trimmed:
        """Clean up a slot as far as one call may: where it is time for it, or `now`. Atomic; safe to repeat."""
        retention = self.topic.retention
        if retention is None or not retention.bounded:
            return Trimmed(slot, False, 0, False, 0)
        return self._connections.run(stream_calls.trim(self.topic, slot, retention, now=now))

    def delete(self, slot: int, ids: Sequence[str]) -> int:
        """Delete entries, whoever may still need them; return how many were there."""
        deleted = 0
        for first in range(0, len(ids), MAX_BATCH):
            deleted += self._connections.run(stream_calls.delete(self.topic, slot, ids[first : first + MAX_BATCH]))
        return deleted

    def forget(self, slot: int, group: str, consumer: str, idle_ms: int, limit: int = NACK_BATCH) -> tuple[int, int]:
        """Remove a consumer, or all that hold nothing: how many, and how many deliveries were given back."""
        return self._connections.run(
            stream_calls.forget(self.topic, slot, group, consumer, idle_ms, limit, self._connections.publish)
        )

    def redrive(self, slot: int, group: str, ids: Sequence[str]) -> list[Redriven]:
        """Deliver dead entries again, to this group only; at most `NACK_BATCH`."""
        return self._connections.run(stream_calls.redrive(self.topic, slot, group, ids, self._connections.publish))

    def purge_dead(self, slot: int, group: str, ids: Sequence[str]) -> int:
        """Drop dead entries for good; return how many."""
        return self._connections.run(stream_calls.purge_dead(self.topic, slot, group, ids))


class GroupSlots:
    """The slots as one consumer of a group claims from them; what a `Claimer` and a `LeaseKeeper` work on.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
        member: Group and consumer.
    """

    awaits_owners = True
    joins_claims = False

    def __init__(self, connections: Connections, topic: Topic, member: Member) -> None:
        self._connections = connections
        self.topic = topic
        self.member = member

    def claim_call(
        self,
        slot: int,
        limit: int,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        acks: Iterable[Ack] = (),
        nacks: Sequence[Nack] = (),
        whole: Sequence[WholeClaim] = (),
    ) -> Call[ClaimReply]:
        """Build a claim that first settles earlier deliveries."""
        del start, whole  # a stream has no ranks, and its claims are named
        return stream_calls.claim(
            self.topic, slot, self.member, limit, self._connections.publish, owner=owner, acks=acks, nacks=nacks
        )

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of when each slot next has something to do."""
        return stream_calls.look(self.topic, slots, self.member.group)

    def deliveries(
        self, slot: int, reply: ClaimReply, lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers; report what had vanished."""
        self.report_lost(slot, reply)
        now_ms, group = reply.now_ms, self.member.group
        return [
            StreamDelivery(
                self.topic, slot, cast("StreamClaimed", claimed), now_ms, lease_until_s, holder, owner, group
            )
            for claimed in reply.messages
        ]

    def report_lost(self, slot: int, reply: ClaimReply) -> None:
        """Log entries that were trimmed or deleted before the group had acked them."""
        lost = cast("StreamClaimReply", reply).lost
        if lost:
            log.warning(
                "topic %s, slot %d, group %s: %d entries were trimmed or deleted before they were acked: %s%s",
                self.topic.name,
                slot,
                self.member.group,
                len(lost),
                ", ".join(entry_id.decode() for entry_id in lost[:SHOWN_IDS]),
                " …" if len(lost) > SHOWN_IDS else "",
            )

    def ack(self, slot: int, acks: Sequence[Ack], owner: Owner = NO_OWNER) -> list[bytes]:
        """Ack deliveries; return the ids whose claim was stale."""
        stale: list[bytes] = []
        for first in range(0, len(acks), MAX_BATCH):
            reply = self._connections.run(self.claim_call(slot, 0, owner=owner, acks=acks[first : first + MAX_BATCH]))
            stale += reply.stale
        return stale

    def nack(self, slot: int, nacks: Sequence[Nack], owner: Owner = NO_OWNER) -> list[bytes]:
        """Nack deliveries; return the ids whose claim was stale."""
        stale: list[bytes] = []
        for first in range(0, len(nacks), NACK_BATCH):
            part = nacks[first : first + NACK_BATCH]
            reply = self._connections.run(self.claim_call(slot, 0, owner=owner, nacks=part))
            self.report_lost(slot, reply)
            stale += reply.stale
        return stale

    def extend(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> ExtendReply:
        """Renew up to `MAX_BATCH` leases; the reply has the delivery counts, `None` where a lease was lost."""
        return self._connections.run(stream_calls.extend(self.topic, slot, self.member, claims, owner))

    def extend_many(self, renewals: Sequence[Renewal]) -> list[ExtendReply | RmqError]:
        """Renew leases in several slots at once; a server that is down does not hold up the others for long."""
        parts = [stream_calls.extend(self.topic, slot, self.member, claims, owner) for slot, claims, owner in renewals]
        return self._connections.run_many(parts, RENEWAL_PATIENCE_S, self.topic.lease_s / 6)
