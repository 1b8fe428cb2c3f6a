"""One slot of one topic: the only caller of scripts that write.

Every change of a slot goes through here, so this is where to look for what may happen to a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq import calls, control_calls, stream_calls
from rmq.calls import MAX_BATCH, RENEWAL_PATIENCE_S, Ack, Adopted, Call, Nack, Renewal, WholeClaim
from rmq.connections import Connections
from rmq.delivery import Delivery, Holder
from rmq.errors import RmqError
from rmq.exchange import raise_first
from rmq.messages import Encoded
from rmq.ownership import NO_OWNER, Owner
from rmq.results import ClaimReply, ControlResult, ExtendReply, Redriven, SendResult
from rmq.topics import Topic, TopicType

PAUSE_ROUND = 64
"""Slots paused in one round trip."""

NACK_BATCH = 256
"""Most nacks, and most redrives or purges, in one call: each costs the server several commands."""


WHOLE_BATCH = 256
"""Most whole claims acked in one call, for the same reason."""


class SlotWriter:
    """Changes the slots of one topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
    """

    awaits_owners = False
    joins_claims = True

    def __init__(self, connections: Connections, topic: Topic) -> None:
        self._connections = connections
        self.topic = topic

    def send(self, slot: int, messages: Sequence[Encoded], detailed: bool = False) -> SendResult:
        """Store up to `MAX_BATCH` messages of one slot. Atomic; safe to repeat."""
        return self._connections.run(self.send_call(slot, messages, detailed))

    def send_call(self, slot: int, messages: Sequence[Encoded], detailed: bool = False) -> Call[SendResult]:
        """Build a send, for callers that keep several in flight."""
        if self.topic.type is TopicType.STREAM:
            return stream_calls.send(self.topic, slot, messages, self._connections.publish, detailed)
        return calls.send(self.topic, slot, messages, self._connections.publish, detailed)

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
        """Build a claim that first settles earlier deliveries, for callers that claim from several slots at once."""
        return calls.claim(self.topic, slot, limit, owner=owner, start=start, acks=acks, nacks=nacks, whole=whole)

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Build the reading of when each slot next has something to do."""
        return calls.look(self.topic, slots)

    def deliveries(
        self, slot: int, reply: ClaimReply, lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        """Return what a claim brought, for handlers."""
        topic, now_ms = self.topic, reply.now_ms
        return [Delivery(topic, slot, claimed, now_ms, lease_until_s, holder, owner) for claimed in reply.messages]

    def ack(self, slot: int, acks: Sequence[Ack], owner: Owner = NO_OWNER) -> list[bytes]:
        """Ack deliveries; return the contents whose claim was stale."""
        stale: list[bytes] = []
        for first in range(0, len(acks), MAX_BATCH):
            stale += self._connections.run(calls.ack(self.topic, slot, acks[first : first + MAX_BATCH], owner))
        return stale

    def ack_whole(self, slot: int, claims: Sequence[WholeClaim], owner: Owner = NO_OWNER) -> Sequence[int]:
        """Ack claims of which every delivery is done; return the claim scores of those that have to be acked by name.

        Guarantee: a claim is acked only if its count and its witness show that it is the one that is meant, whoever
        else claimed in the same second; else nothing changes for it.
        """
        unmatched: list[int] = []
        for first in range(0, len(claims), WHOLE_BATCH):
            part = claims[first : first + WHOLE_BATCH]
            unmatched += self._connections.run(calls.claim(self.topic, slot, 0, owner=owner, whole=part)).unmatched
        return unmatched

    def nack(self, slot: int, nacks: Sequence[Nack], owner: Owner = NO_OWNER) -> list[bytes]:
        """Nack deliveries; return the contents whose claim was stale."""
        stale: list[bytes] = []
        for first in range(0, len(nacks), NACK_BATCH):
            part = nacks[first : first + NACK_BATCH]
            stale += self._connections.run(calls.nack(self.topic, slot, part, self._connections.publish, owner))
        return stale

    def extend(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> ExtendReply:
        """Renew up to `MAX_BATCH` leases; the reply has the new claim scores, `None` where one was lost."""
        return self._connections.run(calls.extend(self.topic, slot, claims, owner))

    def extend_many(self, renewals: Sequence[Renewal]) -> list[ExtendReply | RmqError]:
        """Renew leases in several slots at once; a server that is down does not hold up the others for long."""
        parts = [calls.extend(self.topic, slot, claims, owner) for slot, claims, owner in renewals]
        return self._connections.run_many(parts, RENEWAL_PATIENCE_S, self.topic.lease_s / 6)

    def cancel(self, slot: int, contents: Sequence[bytes], actor: str = "") -> list[ControlResult]:
        """Take contents out of the backlog; at most `MAX_BATCH`. Without `actor`, here and below, no audit line."""
        return self._connections.run(calls.cancel(self.topic, slot, contents, actor))

    def reschedule(
        self,
        slot: int,
        contents: Sequence[bytes],
        kind: str,
        value: int,
        actor: str = "",
        action: str = "reschedule",
    ) -> list[ControlResult]:
        """Give contents another due time (`after` ms, `at` epoch ms) or `priority`; at most `MAX_BATCH`."""
        publish = self._connections.publish
        return self._connections.run(calls.reschedule(self.topic, slot, contents, kind, value, publish, actor, action))

    def promote(self, slot: int, contents: Sequence[bytes], actor: str = "") -> list[ControlResult]:
        """Make contents due now; at most `MAX_BATCH`."""
        return self._connections.run(
            control_calls.promote(self.topic, slot, contents, self._connections.publish, actor)
        )

    def pause_many(self, slots: Sequence[int], paused: bool, actor: str = "", detail: str = "") -> list[bool]:
        """Pause or resume slots; say of each whether that changed it. The audit line stands with the first one."""
        found: list[bool | RmqError] = []
        for first in range(0, len(slots), PAUSE_ROUND):
            part = slots[first : first + PAUSE_ROUND]
            found += self._connections.run_many(
                [
                    control_calls.pause(
                        self.topic, slot, paused, self._connections.publish, actor if slot == slots[0] else "", detail
                    )
                    for slot in part
                ]
            )
        raise_first(found)
        return [each is True for each in found]

    def purge_backlog(self, slot: int, place: str, limit: int) -> int:
        """Drop up to `limit` messages of `store` or `retry` for good; return how many."""
        return self._connections.run(control_calls.purge_backlog(self.topic, slot, place, min(limit, MAX_BATCH)))

    def redrive(
        self,
        slot: int,
        kind: str,
        value: int,
        *,
        overwrite: bool,
        limit: int,
        contents: Sequence[bytes] = (),
        died_ms: Sequence[int] | None = None,
        actor: str = "",
    ) -> list[Redriven]:
        """Send the named dead, or the `limit` longest dead, again; at most `NACK_BATCH`.

        With `died_ms`, the named ones only if they died then.
        """
        call = calls.redrive(
            self.topic,
            slot,
            kind,
            value,
            overwrite=overwrite,
            limit=min(limit, NACK_BATCH),
            publish=self._connections.publish,
            contents=contents,
            died_ms=died_ms,
            actor=actor,
        )
        return self._connections.run(call)

    def purge_dead(
        self,
        slot: int,
        *,
        before_ms: int | None = None,
        limit: int = MAX_BATCH,
        contents: Sequence[bytes] = (),
        actor: str = "",
    ) -> int:
        """Drop the named dead, or the `limit` longest dead, for good; return how many."""
        return self._connections.run(
            calls.purge_dead(self.topic, slot, before_ms=before_ms, limit=limit, contents=contents, actor=actor)
        )

    def adopt(self, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Adopted:
        """Move a slot, or a group's part of it, to another ensemble or to none (empty). Atomic; safe to repeat."""
        return self._connections.run(calls.adopt(self.topic, slot, from_ensemble, to_ensemble, group))
