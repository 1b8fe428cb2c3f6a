"""The slots of a topic that is no stream: every call that changes what is in them.

Other modules write, too: `stream_slots` the slots of a stream topic, `rmq.spark.slots` the batches of a query,
`registry` definitions, `audit` its lines, the heartbeat the list of workers, the rate limit a bucket, the history
a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rmq._broker import claims as claiming
from rmq._broker import control, dead
from rmq._broker.claims import CLAIM_BYTES, MAX_BATCH, NO_OUTCOMES, Ack, Nack, Outcomes
from rmq._broker.control import Adopted
from rmq._broker.each import call_each, call_in_parts
from rmq._broker.sends import JoinedSends, MergedSends, joins_sends, send_calls
from rmq._broker.source import Source
from rmq._model.claim_columns import ClaimColumns
from rmq._model.deliveries import Delivery, Holder
from rmq._model.merged_deliveries import MergedDelivery
from rmq._model.messages import Encoded
from rmq._model.replies import (
    NO_OWNER,
    Claimed,
    ClaimedRows,
    ClaimReply,
    ControlResult,
    ExtendReply,
    NackReply,
    Owner,
    Redriven,
    SendResult,
)
from rmq._model.topics import Topic
from rmq._transport.call import Call
from rmq._transport.connections import Connections
from rmq.errors import RmqError

NACK_BATCH = 100
"""Most nacks, and most redrives or purges, in one call: each costs the server several commands."""

PIGGYBACKED_NACKS = 64
"""Most nacks in a slot that go along with a claim, which has other work to do."""

WHOLE_BATCH = 256
"""Most whole claims acked in one call, for the same reason."""


class SlotWriter(Source[Claimed]):
    """Changes the slots of one topic.

    Args:
        connections: Where the slots are.
        topic: The registered definition.
        delayed: Messages are sent with delays, in ms, as their scores: Redis' clock makes times of them.

    Attributes:
        send_call: Builds a send of up to `MAX_BATCH` messages of one slot, for callers that keep several in flight.
        send_part_call: The same; where the topic merges the call may answer with a `PartlySent`.
        send_many_call: Builds a call of small sends to several slots; `None` where they need calls of their own.
    """

    def __init__(self, connections: Connections, topic: Topic, *, delayed: bool = False) -> None:
        super().__init__(connections, topic)
        self.send_call = send_calls(topic, delayed=delayed, turns=connections.turns)
        self.send_part_call = self.send_call
        if isinstance(self.send_call, MergedSends):
            self.send_part_call = partial(self.send_call, partly=True)
        joins = not (delayed or connections.apart) and joins_sends(topic)
        self.send_many_call = JoinedSends(topic, self.send_call) if joins else None
        self.acks_whole = topic.merge is None
        self._claims = claiming.Claims(topic)

    def send(self, slot: int, messages: Sequence[Encoded], detailed: bool = False) -> SendResult:
        """Store up to `MAX_BATCH` messages of one slot. Atomic; repeated by itself where the reply was lost."""
        return self._connections.run(self.send_call(slot, messages, detailed))

    def claim_call(
        self,
        slot: int,
        limit: int,
        outcomes: Outcomes = NO_OUTCOMES,
        *,
        owner: Owner = NO_OWNER,
        start: int = 0,
        most_bytes: int = CLAIM_BYTES,
    ) -> Call[ClaimReply[Claimed]]:
        return self._claims(slot, limit, outcomes, owner=owner, start=start, most_bytes=most_bytes)

    def claim_many_call(
        self, claims: Sequence[Call[ClaimReply[Claimed]]], settle_only: Sequence[bool], most_bytes: int
    ) -> Call[list[ClaimReply[Claimed] | RmqError]]:
        return claiming.claim_many(claims, settle_only, most_bytes)

    def look_call(self, slots: Sequence[int]) -> Call[tuple[int, list[int]]]:
        return claiming.look(self.topic, slots)

    def deliveries(
        self, slot: int, reply: ClaimReply[Claimed], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        topic, now_ms = self.topic, reply.now_ms
        kind = Delivery if topic.merge is None else MergedDelivery
        return [kind(topic, slot, claimed, now_ms, lease_until_s, holder, owner) for claimed in reply.messages]

    def columns(
        self, slot: int, reply: ClaimReply[Claimed], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Delivery]:
        rows, now_ms = reply.messages, reply.now_ms
        if self.topic.merge is not None or not isinstance(rows, ClaimedRows):
            return self.deliveries(slot, reply, lease_until_s, holder, owner)
        if rows.alike:
            return [ClaimColumns(self.topic, slot, rows, now_ms, lease_until_s, holder, owner)]
        scores = rows.claim_scores
        found: list[Delivery] = []
        for score in dict.fromkeys(scores):  # what was rolled back has a claim score by its retries left
            part = rows.of([index for index, each in enumerate(scores) if each == score], True)
            found.append(ClaimColumns(self.topic, slot, part, now_ms, lease_until_s, holder, owner))
        return found

    def ack_call(self, slot: int, acks: Sequence[Ack]) -> Call[tuple[bytes, ...]]:
        return claiming.ack(self.topic, slot, acks)

    def nack_call(self, slot: int, nacks: Sequence[Nack]) -> Call[NackReply]:
        return claiming.nack(self.topic, slot, nacks)

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        return claiming.extend(self.topic, slot, claims, owner)

    def cancel(self, slot: int, contents: Sequence[bytes], actor: str = "") -> list[ControlResult]:
        """Take contents out of the backlog; at most `STEERED`. Without `actor`, here and below, no audit line."""
        return self._connections.run(control.cancel(self.topic, slot, contents, actor))

    def reschedule(
        self,
        slot: int,
        contents: Sequence[bytes],
        kind: str,
        value: int,
        actor: str = "",
        action: str = "reschedule",
    ) -> list[ControlResult]:
        """Give contents another due time (`after` ms, `at` epoch ms) or `priority`; at most `STEERED`."""

        def build(done: int) -> Call[list[ControlResult]]:
            return control.reschedule(self.topic, slot, contents[done:], (kind, value), actor, action)

        return call_in_parts(self._connections, build, len(contents))

    def promote(self, slot: int, contents: Sequence[bytes], actor: str = "") -> list[ControlResult]:
        """Make contents due now; at most `STEERED`."""

        def build(done: int) -> Call[list[ControlResult]]:
            return control.promote(self.topic, slot, contents[done:], actor)

        return call_in_parts(self._connections, build, len(contents))

    def pause_many(self, slots: Sequence[int], paused: bool, actor: str = "", detail: str = "") -> list[bool]:
        """Pause or resume slots; say of each whether that changed it. The audit line stands with the first one."""

        def build(slot: int) -> Call[bool]:
            by = actor if slot == slots[0] else ""
            return control.pause(self.topic, slot, paused, by, detail)

        return call_each(self._connections, slots, build, to_the_end=True)

    def purge_backlog(self, slot: int, place: str, limit: int) -> int:
        """Drop up to `limit` messages of `store` or `retry` for good; return how many."""
        return self._connections.run(control.purge_backlog(self.topic, slot, place, min(limit, MAX_BATCH)))

    def redrive(
        self,
        slot: int,
        kind: str,
        value: int,
        *,
        overwrite: bool,
        contents: Sequence[bytes],
        died_ms: Sequence[int] | None = None,
        actor: str = "",
    ) -> list[Redriven]:
        """Send up to `NACK_BATCH` dead again, with `died_ms` only if they died then. Large ones take several calls."""

        def build(done: int) -> Call[list[Redriven]]:
            return dead.redrive(
                self.topic,
                slot,
                (kind, value),
                overwrite=overwrite,
                contents=contents[done:],
                died_ms=None if died_ms is None else died_ms[done:],
                actor=actor,
            )

        return call_in_parts(self._connections, build, len(contents))

    def purge_dead(self, slot: int, contents: Sequence[bytes], actor: str = "") -> int:
        """Drop dead for good; return how many. At most `NACK_BATCH`."""
        return self._connections.run(dead.purge_dead(self.topic, slot, contents, actor))

    def adopt(self, slot: int, from_ensemble: str, to_ensemble: str, group: str | None = None) -> Adopted:
        """Move a slot, or a group's part of it, to another ensemble or to none (empty). Atomic; safe to repeat."""
        return self._connections.run(control.adopt(self.topic, slot, from_ensemble, to_ensemble, group))
