"""How cost and memory grow with the backlog: 10^4, 10^5, 10^6, 10^7 messages, with --full 10^8.

At each size the scripts that send, claim and ack run in turns with bare ZADD, ZPOPMAX, ZADD and ZREM on the same sorted
sets, which grow with the backlog, too: what RMQ adds is the ratio. Both are encoded beforehand, in calls of the same
size, and sent over one plain socket: what a server costs that waits for its clients hides what the size does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import redis

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.meters import Meter, medians, rounded
from benchmarks.support.native import Pipe, pack, pairs
from benchmarks.support.servers import Servers, some
from rmq import PriorityMessage, RmqClient, Topic, TopicType
from tests.support.core import ClaimPart, EncodedMessage, Message, Outcomes, claims, default_scripts, sends

SLOTS = 64
SAMPLE = 5_000
"""Messages that are sent into, and claimed from, a backlog of each size in a round: few beside the smallest one, and
the same number everywhere, since the size of a call decides its cost."""
ROUNDS = 10
"""Rounds of a repeat: each takes Redis some 20 ms a side."""
HOW = f"{ROUNDS} a repeat, by scripts and by bare commands in turns, over one plain socket each"
NATIVE = 100_000
"""Messages whose bytes in bare sorted sets are measured."""
FULL_NODES = 4
_PRIORITIES = 999_983
_CLAIM_SCORE = 1_800_000_000_016
_AGED = 2**33
"""A bare score is a priority times this, plus what stands for an age: about what RMQ stores. Others would all stand at
one end of its sets, and have fewer digits, which costs less."""
_first = count(0, SAMPLE)

Batches = Mapping[int, Mapping[bytes, int]]
"""Slot -> content -> priority or score."""


def measure(options: argparse.Namespace) -> Document:
    """Fill a backlog decade by decade; at each, measure a sample of sends, of claims and acks, and the memory."""
    largest = 8 if options.full else 6 if options.quick else 7
    nodes = FULL_NODES if options.full else 1
    topic = Topic("bench-backlog", TopicType.PRIORITY, slots=SLOTS)
    rows: list[Row] = []
    with some(nodes) as servers, RmqClient(servers.url, timeout_s=60.0) as client:
        sides = Sides(servers, topic)
        native_bytes = sides.bytes_of(NATIVE)
        producer = client.producer(topic)
        producer.send_many(_messages(0, 1))  # scripts and keys are there before memory is read
        memory_empty = _memory(servers)
        filled = 1
        for size in (10**power for power in range(4, largest + 1)):
            say(f"backlog: filling up to {size:,}")
            with Meter(servers) as filling:
                producer.send_many(_messages(filled, size))
            added, filled = size - filled, size
            used = _memory(servers) - memory_empty
            say(f"backlog: measuring at {size:,}")
            rows.append(
                {
                    "backlog": size,
                    "fill_rate_per_s": rounded(added / filling.cost.elapsed_s),
                    "fill_server_us": rounded(filling.cost.executing_us("evalsha") / added),
                    "bytes_per_message": rounded(used / size),
                    **medians([sides.round(turn) for turn in range(options.repeats * ROUNDS)]),
                }
            )
        say(f"backlog: draining {filled:,}")
        drained = _drain(servers, client, topic, filled)
        allocator = str(servers.connect().info("memory")["mem_allocator"])
    return {
        **({"benchmark": "backlog_full"} if options.full else {}),
        "allocator": allocator,
        "settings": {
            "slots": SLOTS,
            "sample": SAMPLE,
            "nodes": nodes,
            "content_bytes": 20,
            "type": "PRIORITY",
            "how": HOW,
        },
        "native_bytes_per_message": rounded(native_bytes),
        "rows": rows,
        "drain": drained,
    }


def _messages(start: int, stop: int) -> Iterator[Message]:
    """Contents and priorities in random order: the hardest case for a sorted set."""
    contents = loads.stream(start, stop)
    return (PriorityMessage(content, _priority(index)) for index, content in enumerate(contents, start))


def _priority(index: int) -> int:
    return 1_000 + index * 7_919 % _PRIORITIES


class Sides:
    """Sends a sample, claims as many messages and acks them: by the scripts, and by bare commands.

    Args:
        servers: The servers; the requests to each go over one socket.
        topic: The topic, in whose slots both sides work.
    """

    def __init__(self, servers: Servers, topic: Topic) -> None:
        self._servers, self._topic = servers, topic
        self._send, self._claim = sends.send_calls(topic), claims.queue_claims(topic)
        self._settle = claims.settlements(topic)
        self._pipes = {port: Pipe(port) for port in servers.ports}
        for client in servers.connect_all():
            for name in ("send", "claim", "settle"):
                client.script_load(default_scripts()[name].text)
        self._ports = [servers.port] * SLOTS
        if len(servers.ports) > 1:
            with redis.RedisCluster(host="127.0.0.1", port=servers.port) as cluster:
                self._ports = [int(_node(cluster, self._store(slot)).port) for slot in range(SLOTS)]

    def round(self, turn: int) -> dict[str, float]:
        """Let each side take its turn, and leave the backlog as it was; return what they cost, and the ratio."""
        row: dict[str, float] = {}
        sides = (self._by_scripts, self._by_commands)
        for side in sides[:: -1 if turn % 2 else 1]:
            sample = self._sample()
            taken = side(sample, row)
            self._run({slot: self._added(slot, batch) for slot, batch in taken.items()})
            self._run({slot: pack("ZREM", self._store(slot), *batch) for slot, batch in sample.items()})
        return row | {"life_of_native": _life(row) / _native_life(row)}

    def bytes_of(self, number: int) -> float:
        """Return the bytes that each of so many messages takes in bare sorted sets; leave nothing."""
        before = _memory(self._servers)
        for _ in range(0, number, SAMPLE):
            self._run({slot: self._added(slot, _aged(batch)) for slot, batch in self._sample().items()})
        used = _memory(self._servers) - before
        self._servers.flush()
        return used / number

    def _by_scripts(self, sample: Batches, row: dict[str, float]) -> Batches:
        calls = {
            slot: self._send(slot, [EncodedMessage(slot, content, value, None) for content, value in batch.items()])
            for slot, batch in sample.items()
        }
        requests = {slot: self._request(call) for slot, call in calls.items()}
        with Meter(self._servers) as sending:
            replies = self._run(requests)
        for slot, call in calls.items():
            call.parse(replies[slot][0])  # the next round's calls are made with the age that this one has seen
        requests = {slot: self._request(self._claim((ClaimPart(slot, len(batch)),))) for slot, batch in sample.items()}
        with Meter(self._servers) as claiming:
            replies = self._run(requests)
        found = {slot: reply[0][0] for slot, reply in replies.items()}
        requests = {
            slot: self._request(self._settle(slot, Outcomes(whole=[(self._score(reply), len(reply[5]) // 2)])))
            for slot, reply in found.items()
        }
        with Meter(self._servers) as acking:
            replies = self._run(requests)
        if any(reply != [1] for reply in replies.values()):
            raise RuntimeError("leases were lost during a benchmark")
        _note(row, "", sending, claiming, acking)
        return {slot: dict(zip(reply[5][::2], map(int, reply[5][1::2]), strict=True)) for slot, reply in found.items()}

    def _by_commands(self, sample: Batches, row: dict[str, float]) -> Batches:
        requests = {slot: self._added(slot, _aged(batch)) for slot, batch in sample.items()}
        with Meter(self._servers) as sending:
            self._run(requests)
        requests = {slot: pack("ZPOPMAX", self._store(slot), len(batch)) for slot, batch in sample.items()}
        with Meter(self._servers) as claiming:
            replies = self._run(requests)
        taken = {
            slot: dict(zip(popped[::2], map(int, popped[1::2]), strict=True)) for slot, [popped] in replies.items()
        }
        prepare = f"native{{{self._topic.name}_%d}}"
        requests = {
            slot: pack("ZADD", prepare % slot, *pairs([_CLAIM_SCORE] * len(batch), [*batch]))
            + pack("ZREM", prepare % slot, *batch)
            for slot, batch in taken.items()
        }
        with Meter(self._servers) as acking:
            self._run(requests, 2)
        _note(row, "native_", sending, claiming, acking)
        return taken

    def _run(self, requests: Mapping[int, bytes], replies_each: int = 1) -> dict[int, list[Any]]:
        """Carry out requests, one of each slot; return their replies."""
        found: dict[int, list[Any]] = {}
        for port, pipe in self._pipes.items():
            here = [slot for slot in requests if self._ports[slot] == port]
            replies = iter(pipe.run([requests[slot] for slot in here], replies_each))
            found |= {slot: [next(replies) for _ in range(replies_each)] for slot in here}
        return found

    def _sample(self) -> Batches:
        """Return contents that are not in the backlog, with their priorities."""
        first = next(_first)
        found: dict[int, dict[bytes, int]] = {slot: {} for slot in range(SLOTS)}
        for number in range(first, first + SAMPLE):
            found[number % SLOTS][b"sampl:%014d" % number] = _priority(number)
        return found

    def _score(self, reply: Any) -> int:
        return int(reply[8]) * 1_000 + self._topic.max_retries

    def _request(self, call: Any) -> bytes:
        return default_scripts().request(call, sharded=False, cluster=len(self._pipes) > 1)

    def _added(self, slot: int, batch: Mapping[bytes, int]) -> bytes:
        return pack("ZADD", self._store(slot), *pairs([*batch.values()], [*batch]))

    def _store(self, slot: int) -> str:
        return f"{self._topic.name}_{slot}"


def _node(cluster: Any, key: str) -> Any:
    return cluster.get_node_from_key(key)


def _aged(batch: Mapping[bytes, int]) -> dict[bytes, int]:
    return {content: priority * _AGED + _AGED // 2 for content, priority in batch.items()}


def _note(row: dict[str, float], name: str, sending: Meter, *claiming: Meter) -> None:
    row[f"{name}send_server_cpu_us"] = sending.cost.server_cpu_s * 1e6 / SAMPLE
    row[f"{name}claim_ack_server_cpu_us"] = sum(each.cost.server_cpu_s for each in claiming) * 1e6 / SAMPLE


def _drain(servers: Servers, client: RmqClient, topic: Topic, number: int) -> Row:
    started_s, done = time.monotonic(), 0
    with client.consumer(topic) as consumer, Meter(servers) as claiming:
        while done < number:
            found = consumer.poll(min(8_000, number - done), 10.0)
            if not found:
                raise RuntimeError(f"only {done} of {number} messages came")
            consumer.ack(found)
            done += len(found)
    stats = client.inspect(topic).stats()
    return {
        "rate_per_s": rounded(number / claiming.cost.elapsed_s),
        "took_s": round(time.monotonic() - started_s, 1),
        "left": stats.backlog + stats.in_flight,
    }


def _memory(servers: Servers) -> int:
    return sum(int(client.info("memory")["used_memory"]) for client in servers.connect_all())


def tables(document: Document) -> str:
    """Render growth and drain."""
    rows: list[Row] = document["rows"]
    least = rows[0]
    lines = rendering.listed(
        rows,
        ("backlog", "{backlog:,}"),
        ("filled, 1/s", "{fill_rate_per_s:,.0f}"),
        ("send, µs", "{send_server_cpu_us:,.2f}"),
        ("claim + ack, µs", "{claim_ack_server_cpu_us:,.2f}"),
        ("life, µs", lambda row: rendering.number(_life(row), 2)),
        ("life against the smallest", lambda row: rendering.ratio(_life(row) / _life(least))),
        ("native life against the smallest", lambda row: rendering.ratio(_native_life(row) / _native_life(least))),
        ("native: send, µs", "{native_send_server_cpu_us:,.2f}"),
        ("claim + ack, µs", "{native_claim_ack_server_cpu_us:,.2f}"),
        ("life against native", "{life_of_native:×}"),
        ("that against the smallest", lambda row: rendering.ratio(row["life_of_native"] / least["life_of_native"])),
        ("bytes a message", "{bytes_per_message:,.1f}"),
    )
    return rendering.text("backlog", document, table=lines, filled=rows[-1]["backlog"], native=NATIVE)


def _life(row: Row) -> float:
    return float(row["send_server_cpu_us"] + row["claim_ack_server_cpu_us"])


def _native_life(row: Row) -> float:
    return float(row["native_send_server_cpu_us"] + row["native_claim_ack_server_cpu_us"])


LIVES = {
    "send": "send_server_cpu_us",
    "claim + ack": "claim_ack_server_cpu_us",
    "life": _life,
    "life in native commands": _native_life,
}
PLOT = rendering.picture(
    "Growth with the backlog",
    rendering.Panel("Redis' CPU, µs per message", "{backlog:,.0e}", LIVES),
    rendering.Panel("bytes per message", "{backlog:,.0e}", {"bytes": "bytes_per_message"}, digits=0),
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help=f"up to 10^8, on a cluster of {FULL_NODES}; takes 16 GB")


BENCHMARK = Benchmark("backlog", measure, tables, PLOT, _arguments)
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
