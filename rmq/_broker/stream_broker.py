"""A stream topic's slots as seen by one consumer of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from threading import Lock
from weakref import ref

from rmq._broker import streams
from rmq._broker.broker import MANY_SLOTS
from rmq._broker.claims import CLAIM_BYTES, NACK_BATCH, STREAM_RENEWALS, Ack, ClaimPart, ClaimReplies, Outcomes
from rmq._broker.streams import Member
from rmq._io.reports import reporter
from rmq._model.deliveries import Claim, Holder
from rmq._model.entries import EntryRows, StreamDelivery, checked_consumer
from rmq._model.replies import NO_OWNER, ClaimReply, ExtendReply, Owner, SettleReply, StreamClaimed
from rmq._model.scores import stamp_of
from rmq._model.topics import Topic, checked_slots
from rmq._model.workers import process_name
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_slots
from rmq._transport.dispatch import CONNECT_PATIENCE_S
from rmq.errors import InvalidValueError

log = reporter("rmq.streams")

SHOWN_IDS = 10

OWN_FROM = 32
"""A claim that follows one of this many entries reads under its own name, which costs Redis two commands a claim."""

RESUME_BATCH = 128
"""Maximum number of entries of an earlier process that one call releases."""

FEWEST_KEPT = 1_024
"""Number of entries up to which `NewestDeliveries` keeps entries whose deliveries are no longer in use."""

LONGEST_UPKEEP_S = 60.0
GONE_LEASES, GONE_S = 10, 600
"""An idle consumer without entries is removed after this many leases, and at the earliest after this many seconds."""


class NewestDeliveries:
    """The newest delivery of each entry that a consumer of a group holds. Thread-safe.

    The token of a delivery is its consumer and its delivery count, which Redis keeps in the pending entries list. A
    server that lost its last writes may give the same count again, and so does a release. Then a late settlement of
    the earlier delivery would settle the later one. So the earlier one loses its token once the later one arrives.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._newest: dict[tuple[int, bytes], tuple[ref[Claim], int]] = {}
        self._limit = FEWEST_KEPT

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, claim: Claim) -> None:
        """Add the deliveries of a new claim; earlier ones of the same entries lose their token."""
        with self._lock:
            newest, claimed = self._newest, ref(claim)
            for row, name in enumerate(claim.rows.names):
                known, known_row = newest.get((claim.slot, name), (None, 0))
                if known is not None and (before := known()) is not None:
                    before.take_away(known_row)
                newest[claim.slot, name] = claimed, row
            if len(newest) > self._limit:
                self._newest = {place: known for place, known in newest.items() if known[0]() is not None}
                self._limit = max(FEWEST_KEPT, 2 * len(self._newest))


class StreamBroker:
    """`Broker` of a stream topic that claims and settles as one consumer of a group.

    Args:
        connections: Connections to the servers of the slots.
        topic: The registered definition.
        member: The group and the consumer.
    """

    in_order = True
    most_renewals = STREAM_RENEWALS

    def __init__(self, connections: Connections, topic: Topic, member: Member) -> None:
        self._connections, self.topic, self.member = connections, topic, member
        self.group: str | None = member.group
        self.look_call = partial(streams.look, topic, group=member.group)
        self._settlements = streams.settlements(topic, member)
        self.settle_many_call = self._settlements.joined
        self._claims = streams.stream_claims(topic, member)
        self._newest = NewestDeliveries()
        self._busy: set[int] = set()
        self._unseen: dict[int, int] = {}
        retention = topic.retention
        self.upkeep_s: float | None = (
            LONGEST_UPKEEP_S if retention is None else min(retention.every_ms / 1000, LONGEST_UPKEEP_S)
        )

    def look_after(self, slot: int) -> bool:
        """Trim a slot if it is due, and remove consumers of the group whose processes are gone."""
        topic, retention = self.topic, self.topic.retention
        if retention is None or not retention.bounded:
            return False
        trimmed = self._connections.run_once(streams.trim(topic, slot, retention), CONNECT_PATIENCE_S)
        if trimmed.due and not trimmed.more:
            idle_ms = max(GONE_S, GONE_LEASES * topic.lease_s) * 1000
            self._connections.run(streams.forget(topic, slot, self.member.group, "", idle_ms, NACK_BATCH))
        return trimmed.more

    def takes_long(self, number: int, slots: int) -> bool:
        return number >= OWN_FROM or (number > 0 and slots >= MANY_SLOTS)

    def claim_call(
        self, parts: Sequence[ClaimPart], most_bytes: int = CLAIM_BYTES
    ) -> Call[ClaimReplies[Sequence[StreamClaimed]]]:
        unseen, busy = self._unseen, self._busy
        own = [
            part._replace(start=unseen.get(part.slot, 1)) if part.limit >= OWN_FROM and part.slot in busy else part
            for part in parts
        ]
        return self._claims(own, most_bytes)

    def claims(
        self, slot: int, reply: ClaimReply[Sequence[StreamClaimed]], lease_until_s: float, holder: Holder, owner: Owner
    ) -> list[Claim]:
        """Return the entries in the reply to a claim, in their order; log entries that had been deleted."""
        log_lost(self.topic, slot, self.member.group, reply.lost)
        if reply.messages:
            self._note(slot, reply)
        claims: list[Claim] = []
        for _, entries in groupby(reply.messages, key=attrgetter("claim_score")):
            rows = EntryRows(list(entries), self.member.group)
            claim = Claim(self.topic, slot, rows, reply.now_ms, lease_until_s, holder, owner, StreamDelivery)
            claim.named = reply.own != (claim.score, len(claim))  # Redis does not count what a claim has read
            if rows.by_count:  # the other tokens are used once
                self._newest.add(claim)
            claims.append(claim)
        return claims

    def _note(self, slot: int, reply: ClaimReply[Sequence[StreamClaimed]]) -> None:
        if len(reply.messages) >= OWN_FROM:
            self._busy.add(slot)
        else:
            self._busy.discard(slot)
        if reply.own is not None:
            self._unseen[slot] = stamp_of(reply.own[0]) + 1

    def settle_call(self, slot: int, outcomes: Outcomes) -> Call[SettleReply]:
        def logged(reply: SettleReply) -> SettleReply:
            log_lost(self.topic, slot, self.member.group, reply.lost)
            return reply

        return self._settlements(slot, outcomes).then(logged)

    def extend_call(self, slot: int, claims: Sequence[Ack], owner: Owner = NO_OWNER) -> Call[ExtendReply]:
        return streams.extend(self.topic, slot, self.member, claims, owner)


def join_group(
    connections: Connections,
    topic: Topic,
    group: str,
    start: str,
    name: str | None = None,
    slots: Iterable[int] | None = None,
    resume_as: str | None = None,
) -> StreamBroker:
    """Register a group if it is new, and return the slots as seen by one of its consumers.

    Args:
        connections: Connections to the servers of the topic.
        topic: The registered definition.
        group: Name of the group.
        start: Position of a new group: `new`, `all`, or the id after which it starts.
        name: Name of the consumer; by default a unique one.
        slots: Only on these slots; all by default.
        resume_as: Name of the consumer, instead of `name`; the process that had it is gone. Its deliveries on these
            slots are released first.

    Raises:
        InvalidValueError: A name is invalid, or both names are given.
        TooManyGroupsError: The topic has the maximum number of groups.
    """
    if name is not None and resume_as is not None:
        raise InvalidValueError("name and resume_as cannot be combined", topic=topic.name)
    chosen = name if resume_as is None else resume_as
    member = Member(group, process_name() if chosen is None else checked_consumer(chosen))
    chosen_slots = checked_slots(topic, slots)
    call_slots(connections, chosen_slots, lambda slot: streams.join(topic, slot, group, start))
    if resume_as is not None and (number := resume(connections, topic, member, chosen_slots)):
        text = "topic %s, group %s: %d entries held by an earlier consumer %s are delivered again"
        log.info(text, topic.name, group, number, resume_as)
    return StreamBroker(connections, topic, member)


def resume(connections: Connections, topic: Topic, member: Member, slots: Sequence[int]) -> int:
    """Release the deliveries of an earlier process of this name on some slots; return their number.

    Guarantee: atomic per call of up to `RESUME_BATCH` entries; safe to repeat until the new process claims.
    """

    def build(slot: int) -> Call[tuple[bool, int, tuple[bytes, ...]]]:
        return streams.resume(topic, slot, member, RESUME_BATCH)

    left, number = list(slots), 0
    while left:
        unfinished: list[int] = []
        for slot, (more, released, lost) in zip(left, call_slots(connections, left, build), strict=True):
            log_lost(topic, slot, member.group, lost)
            number += released
            if more:
                unfinished.append(slot)
        left = unfinished
    return number


def log_lost(topic: Topic, slot: int, group: str, lost: Sequence[bytes]) -> None:
    """Log a warning about entries, if any, that were trimmed or deleted before the group had acked them."""
    if lost:
        text = "topic %s, slot %d, group %s: %d entries were trimmed or deleted before they were acked: %s"
        ids = ", ".join(entry_id.decode() for entry_id in lost[:SHOWN_IDS])
        log.warning(text, topic.name, slot, group, len(lost), f"{ids} …" if len(lost) > SHOWN_IDS else ids)
