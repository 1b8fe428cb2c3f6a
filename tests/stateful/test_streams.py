"""Random histories of a stream with two groups against a small model: nothing vanishes, nothing settled comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from rmq import Retention, Topic, TopicType
from tests.stateful.databases import on_database
from tests.support.core import (
    ClaimPart,
    ClaimReply,
    Connections,
    EncodedMessage,
    Member,
    Nack,
    Outcomes,
    StreamClaimed,
    dead,
    group_keys,
    streams,
)
from tests.support.one_slot import settle_group
from tests.support.slots import scripts_under_test

MAX_RETRIES = 2
TRIM = Retention(max_length=0, approximate=False)
groups, consumers = st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z"])


@dataclass
class Group:
    """What one group must have."""

    unread: list[str] = field(default_factory=list[str])
    held: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    waiting: dict[str, int] = field(default_factory=dict[str, int])
    expired: set[str] = field(default_factory=set[str])
    dead: set[str] = field(default_factory=set[str])
    done: set[str] = field(default_factory=set[str])


class Streams(RuleBasedStateMachine):
    """The scripts beside the model."""

    connections: Connections
    client: Any
    topic = Topic("random", TopicType.STREAM, slots=2, max_retries=MAX_RETRIES)

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.store = f"{self.topic.name}_0"
        self.model = {name: Group() for name in ("a", "b")}
        self.present: list[str] = []
        for name in self.model:
            self.run(streams.join(self.topic, 0, name, "all"))

    def run(self, call: Any) -> Any:
        return self.connections.run(call)

    def claim(self, name: str, consumer: str, limit: int, **settled: Any) -> Any:
        member = Member(name, consumer)
        if consumer == "y" and limit == 0:  # the second one settles apart from its claims
            return self.run(settle_group(self.topic, 0, member, Outcomes(**settled)))
        # the third consumer claims from several slots at once
        parts = [ClaimPart(1, limit)] * (consumer == "z") + [ClaimPart(0, limit, Outcomes(**settled))]
        *others, reply = self.run(streams.stream_claims(self.topic, member)(parts))
        assert isinstance(reply, ClaimReply)
        assert [isinstance(other, ClaimReply) and other.messages for other in others] == [()] * len(others)
        return reply

    @rule(number=st.integers(1, 5))
    def send(self, number: int) -> None:
        messages = [EncodedMessage(0, b"m", 0, None) for _ in range(number)]
        ids = self.run(streams.sends(self.topic)(0, messages, True)).ids
        self.present += ids
        for group in self.model.values():
            group.unread += ids

    @rule(name=groups, consumer=consumers, limit=st.integers(1, 6))
    def take(self, name: str, consumer: str, limit: int) -> None:
        group = self.model[name]
        reply = self.claim(name, consumer, limit)
        fresh: list[str] = []
        for message in reply.messages:
            assert isinstance(message, StreamClaimed)
            entry_id, deliveries = message.id.decode(), message.claim_score
            assert entry_id not in group.done | group.dead
            if entry_id in group.waiting:
                assert deliveries == group.waiting.pop(entry_id) + 1
            elif entry_id in group.held:
                assert entry_id in group.expired, "taken from a live holder"
                assert deliveries == group.held[entry_id][1] + 1
            else:
                assert deliveries == 1
                fresh.append(entry_id)
            group.expired.discard(entry_id)
            group.held[entry_id] = (consumer, deliveries)
        assert fresh == group.unread[: len(fresh)], "order"
        group.unread = group.unread[len(fresh) :]
        buried = {entry.id for entry in self.run(dead.list_dead(self.topic, 0, 0, 1_000, name))} - group.dead
        for entry_id in buried:  # expired with its retries used up
            assert entry_id in group.expired
            assert group.held.pop(entry_id)[1] == MAX_RETRIES + 1
            group.expired.discard(entry_id)
            group.dead.add(entry_id)
        for lost in reply.lost:
            raise AssertionError(f"{lost!r} was there")
        if len(reply.messages) < limit:
            assert not group.unread
            assert not group.waiting

    @rule(name=groups, choice=st.integers(0, 100), verb=st.sampled_from(["ack", "retry", "release", "bury", "stale"]))
    def settle(self, name: str, choice: int, verb: str) -> None:
        group = self.model[name]
        if not group.held:
            return
        entry_id = sorted(group.held)[choice % len(group.held)]
        consumer, deliveries = group.held[entry_id]
        content = entry_id.encode()
        if verb == "stale":
            other = "y" if consumer == "x" else "x"
            assert self.claim(name, other, 0, acks=[(content, deliveries)]).stale == (content,)
            return
        if verb == "ack":
            reply = self.claim(name, consumer, 0, acks=[(content, deliveries)])
            group.done.add(entry_id)
        else:
            reply = self.claim(name, consumer, 0, nacks=[Nack(content, deliveries, verb, 0, "E", "m")])
            if verb == "bury" or (verb == "retry" and deliveries > MAX_RETRIES):
                group.dead.add(entry_id)
            else:
                group.waiting[entry_id] = deliveries - (verb == "release")
        assert (reply.stale, reply.lost) == ((), ())
        del group.held[entry_id]
        group.expired.discard(entry_id)

    @rule(name=groups, consumer=consumers)
    def expire(self, name: str, consumer: str) -> None:
        """A consumer is not heard of for longer than a lease."""
        group = self.model[name]
        mine = [entry_id for entry_id, (holder, _) in group.held.items() if holder == consumer]
        if mine:
            self.client.xclaim(self.store, name, consumer, 0, mine, idle=10**8, justid=True)
            began = {
                "scan_at": 1,
                "scan_cursor": "",
            }  # a pass that is under way has no need to meet it: no time has passed
            self.client.hset(group_keys(self.topic.name, 0, name).group, mapping=began)
            group.expired |= set(mine)

    @rule(name=groups)
    def redrive(self, name: str) -> None:
        group = self.model[name]
        here = [entry_id for entry_id in group.dead if entry_id in self.present]
        if here:
            self.run(dead.redrive_entries(self.topic, 0, name, here))
            group.dead -= set(here)
            group.waiting |= dict.fromkeys(here, 0)

    @rule()
    def trim(self) -> None:
        """Drops what both groups have acked or buried, from the front on, and nothing else."""
        self.run(streams.trim(self.topic, 0, TRIM, now=True))
        gone = 0
        for entry_id in self.present:
            if any(entry_id not in group.done | group.dead for group in self.model.values()):
                break
            gone += 1
        self.present = self.present[gone:]
        assert [entry_id.decode() for entry_id, _ in self.client.xrange(self.store)] == self.present

    @invariant()
    def accounts_are_right(self) -> None:
        calls = [streams.stats(self.topic, 0), *(streams.group_stats(self.topic, 0, name) for name in self.model)]
        slot, *groups = self.connections.run_many(calls)
        assert slot.unaccounted == 0
        for found, group in zip(groups, self.model.values(), strict=True):
            assert found.unaccounted == 0
            sizes = (len(group.waiting), len(group.held), len(group.dead))
            assert (found.waiting, found.in_flight, found.dead) == sizes
            assert found.lag == len(group.unread)

    def teardown(self) -> None:
        """In the end, every entry is acked or dead in every group."""
        for name, group in self.model.items():
            for consumer in ("x", "y", "z"):
                self.expire(name, consumer)
            while group.held or group.waiting or group.unread:
                self.take(name, "x", 100)
                held = [(entry_id.encode(), deliveries) for entry_id, (_, deliveries) in group.held.items()]
                assert self.claim(name, "x", 0, acks=held).stale == ()
                group.done |= set(group.held)
                group.held.clear()
            found = self.run(streams.group_stats(self.topic, 0, name))
            assert (found.pending, found.unaccounted) == (0, 0)
            assert found.totals.get("lost", 0) == 0


@pytest.fixture
def machine(redis_url: str) -> Iterator[type[Streams]]:
    with on_database(redis_url, 4, Streams, scripts_under_test()) as machine:
        yield machine


@pytest.mark.timeout(300)
def test_random_histories_of_a_stream(machine: type[Streams]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=100, stateful_step_count=40))
