"""The slots of a topic as consumers and producers see them: a protocol of claims and settlements, and queues.

`StreamBroker` implements the protocol for groups of stream topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from rmq._broker import claims
from rmq._broker.claims import CLAIM_BYTES, MAX_BATCH, Ack, ClaimPart, ClaimReplies, Outcomes
from rmq._broker.sends import MERGES_AGAIN, QueueSends, send_calls
from rmq._model.batches import EncodedMessage
from rmq._model.claims import MergedDelivery
from rmq._model.deliveries import Claim, Delivery, Holder
from rmq._model.replies import NO_OWNER, ClaimedRows, ClaimReply, ExtendReply, Owner, SendResult, SettleReply
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import RmqError

MANY_SLOTS = 16
"""A claim from this many slots keeps the client busy: each slot has a reply of its own, and an ack of its own."""


class Broker(Protocol):
    """The slots of a topic, as seen by a consumer of a queue, or of a group of a stream, that claims from them.

    Methods whose names end in `_call` return a call that is not yet sent.

    Attributes:
        topic: The registered definition.
        group: The group, on a stream topic; else `None`.
        in_order: Whether the owner of a slot gets its messages in order, as the entries of a group. Then a claim in an
            owner's name must wait until the holder has released those of the slot that it returns; the script waits
            until nothing of an earlier owner is in flight, for which a claim from a queue has to wait itself.
        upkeep_s: Interval of the clean-up of a slot, in seconds; `None` for never.
        most_renewals: Maximum number of leases that one call renews.
    """

    topic: Topic
    group: str | None
    in_order: bool
    upkeep_s: float | None
    most_renewals: int

    def claim_call(self, parts: Sequence[ClaimPart], most_bytes: int = CLAIM_BYTES) -> Call[ClaimReplies[Any]]:
        """Return one call that claims from one slot, or from several that one script may access.

        In the result, each slot has its own reply or error; the error of a single slot is raised.

        Args:
            parts: The claims, one for each slot.
            most_bytes: Maximum size of contents and bodies in all replies, bytes; the first message may be larger.
        """
        ...

    def settle_call(self, slot: int, outcomes: Outcomes) -> Call[SettleReply]:
        """Return a call that settles up to `MAX_BATCH` acks, `NACK_BATCH` nacks and `WHOLE_BATCH` whole claims.

        The result has the names of stale deliveries, and the claims and nacks that need another call.
        """
        ...

    def settle_many_call(self, calls: Sequence[Call[SettleReply]]) -> Call[list[SettleReply | RmqError]]:
        """Return one call in place of several `settle_call`, in slots that one script may access; each gets a reply."""
        ...

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        """Return a call that renews up to `most_renewals` leases; it results in new claim scores, `None` if lost."""
        ...

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        """Return a call that reads Redis' time and the time at which each slot is due next (0 for never), ms."""
        ...

    def takes_long(self, number: int, slots: int) -> bool:
        """Return whether decoding and acking a claim takes so long that the next one should be fetched meanwhile.

        Args:
            number: Number of messages of the claim.
            slots: Number of slots of the claim.
        """
        ...

    def claims(
        self, slot: int, reply: ClaimReply[Any], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Claim]:
        """Return the messages in the reply to a claim: those of one claim score as one `Claim`."""
        ...

    def look_after(self, slot: int) -> bool:
        """Run one step of the clean-up of a slot, if it is due; return whether another step is due at once.

        Every process that listens or polls calls it; the time of the last clean-up is kept in the slot.
        """
        ...


class QueueBroker:
    """Sends to the slots of a topic, claims from them and settles: a `Broker`.

    Args:
        connections: Connections to the servers of the slots.
        topic: The registered definition.
        again: Topics without `merge=`: the effect of repeating a send, for errors about `durability`.

    Attributes:
        send_call: Returns a send of up to `MAX_BATCH` messages of one slot, see `SendCall`.
        send_many_call: Returns a call for small sends to several slots; `None` if each slot needs a call of its own.
    """

    group: str | None = None
    in_order = False
    upkeep_s: float | None = None
    most_renewals = MAX_BATCH

    def __init__(self, connections: Connections, topic: Topic, again: str = MERGES_AGAIN) -> None:
        self._connections, self.topic = connections, topic
        self.send_call = send_calls(topic, connections.rpc_ids, again)
        self.send_many_call = None
        if isinstance(self.send_call, QueueSends) and self.send_call.joins and not connections.multi_node:
            self.send_many_call = self.send_call.joined
        self.claim_call = claims.queue_claims(topic)
        self.settle_call = claims.settlements(topic)
        self.settle_many_call = self.settle_call.joined
        self.extend_call = partial(claims.extend, topic)
        self.look_call = partial(claims.look, topic)

    def send(
        self, slot: int, messages: Sequence[EncodedMessage], detailed: bool = False, *, each: bool = False
    ) -> SendResult:
        """Store up to `MAX_BATCH` messages of one slot. Atomic; repeated automatically if the reply was lost.

        If the topic merges, it may store only the first ones, which the result counts, to limit the cost of a call.
        With `each`, messages that must not be stored are refused individually, see `Partly`.
        """
        return self._connections.run(self.send_call(slot, messages, detailed, partly="each" if each else "first"))

    def takes_long(self, number: int, slots: int) -> bool:
        return number > MAX_BATCH or (number > 0 and slots >= MANY_SLOTS)

    def look_after(self, slot: int) -> bool:
        del slot
        return False

    def claims(
        self, slot: int, reply: ClaimReply[ClaimedRows], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Claim]:
        if not reply.messages:
            return []
        kind = Delivery if self.topic.merge is None else MergedDelivery
        return [
            Claim(self.topic, slot, rows, reply.now_ms, lease_until_s, holder, owner, kind)
            for rows in reply.messages.by_score()
        ]
