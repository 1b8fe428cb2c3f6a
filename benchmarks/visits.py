"""What a visit of a slot costs where slots have few messages: claims from many slots a call, as a listener makes them.

    python -m benchmarks.visits [--quick]

With 1,024 slots and 10,000 messages a second a claim finds one message in a slot: then the visit is what a message
costs, and how many visits a second there can be decides how late messages are.
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.loads import TYPES
from benchmarks.support.meters import Meter, medians
from benchmarks.support.servers import Servers, standalone
from rmq import Topic, TopicType
from rmq._broker.broker import QueueBroker
from rmq._broker.claims import SETTLE_ONLY, ClaimPart, Outcomes
from rmq._model.batches import EncodedMessage
from rmq._model.replies import ClaimReply
from rmq._transport.connections import Connections
from rmq._transport.urls import parse_url

SLOTS, A_CALL, LIMIT = 1_024, 32, 4
"""Slots, how many share a call, and most messages that one of them may bring."""

WHATS = ("a message, and the ack of the last one", "an ack alone", "nothing there")
NATIVE = "ZPOPMIN, ZADD, ZREM"


def measure(options: argparse.Namespace) -> Document:
    """Measure visits of each kind, with and without bodies, in turns."""
    rounds = 3 if options.quick else 12
    samples: dict[tuple[str, bool, str], list[Row]] = {}
    with standalone() as servers:
        for repeat in range(options.repeats):
            say(f"visits: repeat {repeat + 1} of {options.repeats}")
            for kind in TYPES:
                for bodies in (False, True):
                    for what, row in _visits(servers, kind, bodies, rounds).items():
                        samples.setdefault((kind.value, bodies, what), []).append(row)
        version = servers.version
    return {
        "redis": version,
        "settings": {"slots": SLOTS, "slots_a_call": A_CALL, "rounds": rounds},
        "rows": [
            {"type": kind, "bodies": bodies, "what": what, **medians(each)}
            for (kind, bodies, what), each in samples.items()
        ],
    }


def _visits(servers: Servers, kind: TopicType, bodies: bool, rounds: int) -> dict[str, Row]:
    servers.flush()
    topic = Topic("bench-visits", kind, slots=SLOTS)
    found: dict[str, list[Row]] = {what: [] for what in (*WHATS, NATIVE)}
    with closing(Connections(parse_url(servers.url))) as connections:
        slots = _Slots(servers, connections, topic, bodies)
        slots.send()
        slots.claim(LIMIT, SLOTS)
        slots.send()
        slots.claim(LIMIT, SLOTS)  # the first claim of a slot writes down more than later ones
        for _ in range(rounds):
            slots.send()
            found[WHATS[0]].append(slots.claim(LIMIT, SLOTS))
            found[WHATS[1]].append(slots.claim(0, 0))
            found[WHATS[2]].append(slots.claim(LIMIT, 0))
            found[NATIVE].append(_natively(servers, slots.sent))
            slots.send()
            slots.claim(LIMIT, SLOTS)
    return {what: medians(each) for what, each in found.items()}


class _Slots:
    """The slots of a topic, which are visited in turn."""

    def __init__(self, servers: Servers, connections: Connections, topic: Topic, bodies: bool) -> None:
        self.sent = 0
        self._servers, self._connections = servers, connections
        self._writer = QueueBroker(connections, topic)
        self._body = b"a body of 20 bytes.." if bodies else None
        self._acks: list[Outcomes] = [Outcomes()] * SLOTS

    def send(self) -> None:
        """Send one message to each slot, and wait until they are due."""
        self.sent += 1
        kind = self._writer.topic.type
        value = {TopicType.PRIORITY: 1_000, TopicType.RANGE_MERGE: 1}.get(kind, int(time.time() * 1000) + 200)
        content, send_call = b"%019d" % self.sent, self._writer.send_call
        calls = [send_call(slot, [EncodedMessage(slot, content, value, self._body)], False) for slot in range(SLOTS)]
        self._connections.run_many(calls)
        time.sleep(0.25 if kind is TopicType.FIXED_TIME else 0.005)

    def claim(self, limit: int, expected: int) -> Row:
        """Visit all slots, `A_CALL` with a call, and ack what came before; with limit 0 do no more. Return the cost."""
        writer, found = self._writer, list[ClaimReply[Any]]()
        with Meter(self._servers) as meter:
            for first in range(0, SLOTS, A_CALL):
                slots = range(first, first + A_CALL)
                parts = [ClaimPart(slot, limit or SETTLE_ONLY, self._acks[slot]) for slot in slots]
                for reply in self._connections.run(writer.claim_call(parts)):
                    if not isinstance(reply, ClaimReply):
                        raise reply
                    found.append(reply)
        self._acks = [Outcomes([(each.content, each.claim_score) for each in reply.messages]) for reply in found]
        claimed = sum(len(reply.messages) for reply in found)
        if claimed != expected:
            raise RuntimeError(f"{claimed} messages came from {SLOTS} slots, not {expected}")
        return meter.cost.row(SLOTS, "evalsha")


def _natively(servers: Servers, number: int) -> Row:
    """Take a message out of each of as many sets, put it into another one and out again, in pipelines."""
    content = b"%019d" % number
    with servers.connect() as client:
        pipe = client.pipeline(transaction=False)
        for slot in range(SLOTS):
            pipe.zadd(f"native-{slot}", {content: 1_000})
        pipe.execute()
        with Meter(servers) as meter:
            for first in range(0, SLOTS, A_CALL):
                for slot in range(first, first + A_CALL):
                    pipe.zpopmin(f"native-{slot}")
                    pipe.zadd(f"native-prepare-{slot}", {content: 1_800_000_000_016})
                    pipe.zrem(f"native-prepare-{slot}", content)
                pipe.execute()
        return meter.cost.row(SLOTS, "zpopmin", "zadd", "zrem")


def tables(document: Document) -> str:
    """Render what each kind of visit costs."""
    settings = document["settings"]
    rows = [
        [
            f"{row['type']}{', bodies' if row['bodies'] else ''}",
            row["what"],
            rendering.number(row["server_us"], 1),
            rendering.number(row["server_cpu_us"], 1),
            rendering.number(row["client_cpu_us"], 1),
        ]
        for row in document["rows"]
    ]
    return (
        f"{settings['slots']:,} slots with a message each, {settings['slots_a_call']} to a call, Redis "
        f"{document['redis']}. `server`: execution time by `INFO commandstats`; `client`: to build the call "
        f"and to read the reply, without handlers. `{NATIVE}` moves a message by bare commands, in pipelines of "
        "redis-py.\n\n"
        + rendering.table(["topic", "per visit", "server, µs", "server's CPU, µs", "client's CPU, µs"], rows)
    )


BENCHMARK = Benchmark("visits", measure, tables)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
