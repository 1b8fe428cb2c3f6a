"""What typed payloads cost beside the same work done by hand: client CPU and time a message, with 8 slots.

    python -m benchmarks.payloads [--quick]

By hand, the sender encodes each object and the handler decodes each body, with the same library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from benchmarks.support import loads, rendering
from benchmarks.support.harness import Benchmark, Document, say
from benchmarks.support.meters import Meter
from benchmarks.support.servers import Servers, standalone
from rmq import Delivery, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq._model import codecs, typed


class Struct(msgspec.Struct):
    """A payload of msgspec."""

    item: str
    pence: int
    currency: str
    tags: list[str]


@dataclass
class Data:
    """The same as a dataclass."""

    item: str
    pence: int
    currency: str
    tags: list[str]


VALUES: dict[str, Any] = {"item": "mug", "pence": 399, "currency": "GBP", "tags": ["new", "sale"]}
TOPIC = Topic("bench-payloads", TopicType.RANGE_MERGE, slots=8)
STEPS = {"send_many": 0, "one by one": 0, "batch of 500": 500}


class Kind(NamedTuple):
    """A class of payloads, and how a program without `payload=` handles it."""

    payload: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _decode_plain(body: bytes) -> Data:
    return Data(**json.loads(body))


KINDS = {
    "msgspec struct": Kind(Struct, msgspec.json.Encoder().encode, msgspec.json.Decoder(Struct).decode),
    "dataclass, with msgspec": Kind(Data, msgspec.json.Encoder().encode, msgspec.json.Decoder(Data).decode),
    "dataclass, without": Kind(Data, lambda price: json.dumps(asdict(price)).encode(), _decode_plain),
}


def measure(options: argparse.Namespace) -> Document:
    """Measure each kind, typed and by hand in turns."""
    number = 3_000 if options.quick else 10_000
    contents = loads.contents(number)
    samples: dict[tuple[str, str, bool], list[dict[str, float]]] = {}
    with standalone() as servers:
        for repeat in range(-1, options.repeats):  # the first one warms up
            for name in KINDS:
                say(f"payloads: repeat {repeat + 1} of {options.repeats}, {name}")
                for by_topic in (False, True) if repeat % 2 else (True, False):
                    with mock.patch.object(codecs, "_msgspec", return_value=None if "without" in name else msgspec):
                        typed.coder_of.cache_clear()
                        found = _costs(servers, KINDS[name], contents, by_topic)
                    for step, row in found.items():
                        if repeat >= 0:
                            samples.setdefault((name, step, by_topic), []).append(row)
        rows = [_row(samples, name, step) for name in KINDS for step in STEPS]
        settings = {"messages": number, "slots": 8, "body_bytes": len(KINDS["msgspec struct"].encode(Struct(**VALUES)))}
        return {"redis": servers.version, "settings": settings, "rows": rows}


def _row(samples: dict[tuple[str, str, bool], list[dict[str, float]]], name: str, step: str) -> dict[str, Any]:
    hand, topic = samples[name, step, False], samples[name, step, True]
    figures = {
        f"{figure}_{who}": statistics.median(each[figure] for each in found)
        for figure in ("client_cpu_us", "rate_per_s")
        for who, found in (("by_hand", hand), ("typed", topic))
    }
    cpu = statistics.median(b["client_cpu_us"] / a["client_cpu_us"] for a, b in zip(hand, topic, strict=True))
    time = statistics.median(a["rate_per_s"] / b["rate_per_s"] for a, b in zip(hand, topic, strict=True))
    return {"kind": name, "step": step, **figures, "cpu_ratio": cpu, "time_ratio": time}


def _costs(servers: Servers, kind: Kind, contents: list[bytes], by_topic: bool) -> dict[str, dict[str, float]]:
    price = kind.payload(**VALUES)
    topic = replace(TOPIC, payload=kind.payload) if by_topic else TOPIC

    def messages() -> Iterator[Any]:
        if by_topic:
            for content in contents:
                yield topic.message(content, price, time_range_ms=1)
        else:
            for content in contents:
                yield RangeMergeMessage(content, time_range_ms=1, body=kind.encode(price))

    found: dict[str, dict[str, float]] = {}
    for step, batch in STEPS.items():
        servers.flush()
        with RmqClient(servers.url) as client:
            with Meter(servers) as meter:
                client.producer(topic).send_many(messages())
            if step == "send_many":
                found[step] = meter.cost.row(len(contents))
                continue
            _listen(client, topic, kind, batch, (done := _Count(len(contents))), by_topic)
            with Meter(servers) as meter:
                client.start()
                done.reached.wait(60)
            found[step] = meter.cost.row(len(contents))
    return found


class _Count:
    """Counts payloads."""

    def __init__(self, wanted: int) -> None:
        self.left, self.reached = wanted, threading.Event()

    def note(self, price: Any) -> None:
        """Count one."""
        assert price.pence == VALUES["pence"]
        self.left -= 1
        if not self.left:
            self.reached.set()


def _listen(client: RmqClient, topic: Topic, kind: Kind, batch: int, count: _Count, by_topic: bool) -> None:
    decode, note, payload = kind.decode, count.note, kind.payload

    def typed_one(price: Any) -> None:
        note(price)

    def typed_many(prices: Any) -> None:
        for price in prices:
            note(price)

    def by_hand_one(delivery: Delivery) -> None:
        note(decode(delivery.body or b""))

    def by_hand_many(batch: list[Delivery]) -> None:
        for delivery in batch:
            note(decode(delivery.body or b""))

    typed_one.__annotations__, typed_many.__annotations__ = {"price": payload}, {"prices": list[payload]}
    one, many = (typed_one, typed_many) if by_topic else (by_hand_one, by_hand_many)
    client.listener(topic, batch=batch or None)(many if batch else one)


def tables(document: Document) -> str:
    """Render client CPU and time a message, typed beside by hand."""
    rows = [
        [
            row["kind"],
            row["step"],
            f"{row['client_cpu_us_by_hand']:.2f}",
            f"{row['client_cpu_us_typed']:.2f}",
            f"{row['cpu_ratio'] - 1:+.0%}",
            f"{row['time_ratio'] - 1:+.0%}",
        ]
        for row in document["rows"]
    ]
    heads = ["payload", "step", "by hand, µs", "typed, µs", "CPU", "time"]
    return (
        f"Redis {document['redis']}, medians of {document['repeats']} repeats in turns, "
        f"{document['settings']['messages']:,} messages, bodies of {document['settings']['body_bytes']} bytes; µs of "
        f"the client's CPU a message, and how much more it takes.\n\n{rendering.table(heads, rows)}"
    )


BENCHMARK = Benchmark("payloads", measure, tables)
main = BENCHMARK.main

if __name__ == "__main__":
    main()
