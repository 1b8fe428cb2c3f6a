"""Processes that send while others consume, as fast as they can or at a rate, by RMQ or by redis-py.

What both sides have done is noted with its time. So the backlog is known at each moment, and how long a message of
which the place in the order of sends is known has waited: contents tell it, see `loads.index_of`.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import redis

from benchmarks.support import loads
from benchmarks.support.children import Child, Line
from benchmarks.support.meters import CLIENT_SIDE, Figures, Meter, cpu_s, peak_mb, percentiles
from benchmarks.support.servers import Servers
from rmq import Coordinator, Producer, RmqClient, TopicType
from rmq.errors import FixedTimePassedError
from tests.support.owned_worker import owned_by
from tests.support.waiting import wait_until

SLOTS = 8
DELAY_MS = 250
"""Fixed times must lie ahead when they arrive; merge windows are as long, for the same conditions."""
STREAM, GROUP = "stream", "group"
THREADS = 2
"""Threads of RMQ's listener: one waits for its claim while the other handles."""
LIMIT_S = 900.0
PIECE, ROWS = 500, 20_000
"""A sender notes the time after so many messages, or with so many rows of a `send_columns`, as of a file that is read
piece by piece; at a rate, rows of a twentieth of a second."""


class Kind(NamedTuple):
    """What is sent and consumed.

    Attributes:
        type: Of the topic; `None` for a stream of redis-py.
        columns: Whether it is sent by `send_columns` and consumed by a listener with `columns=True`.
        cargo: What the messages carry.
        deletes: Whether entries of a stream of redis-py are deleted once they are acked.
    """

    type: TopicType | None = None
    columns: bool = False
    cargo: str = loads.PLAIN
    deletes: bool = False


class Site(NamedTuple):
    """What a flow runs with beside its servers.

    Attributes:
        durability: Of the sends.
        owners: What owns the workers' slots, as options of a client; `zookeeper` is a pair of hosts and chroot.
        batch: Messages that a handler gets, and that are sent in one call; `None`: one by one.
        warm_up: So many messages are sent and handled beforehand, once each worker owns its share of the slots.
    """

    durability: str = "memory"
    owners: Mapping[str, Any] | None = None
    batch: int | None = loads.BATCH
    warm_up: int = 0


BARE = Site()
STREAMS = "Redis Streams"
KINDS = {
    **{each.value.replace("_", " ").lower(): Kind(each) for each in loads.TYPES},
    **{each.value.replace("_", " ").lower() + " in columns": Kind(each, columns=True) for each in loads.TYPES},
    **{f"range merge, {cargo}": Kind(TopicType.RANGE_MERGE, cargo=cargo) for cargo in loads.CARGOES},
    STREAMS: Kind(),
    STREAMS + ", deleted": Kind(deletes=True),
}
COMMANDS = ("evalsha", "xadd", "xreadgroup", "xack", "xdel")

Progress = list[tuple[float, int]]
"""When how many messages were done."""


def flow(
    servers: Servers, kind: str, number: int, *, rate: float = 0, senders: int = 1, workers: int = 1,
    slots: int = SLOTS, site: Site = BARE,
) -> Figures:  # fmt: skip
    """Send so many messages while they are consumed; return rates, the backlog, the lateness, and costs a message.

    Args:
        servers: Where they are kept.
        kind: One of `KINDS`.
        number: How many, by all senders together.
        rate: Messages a second, of all senders; 0 for as many as they can.
        senders: How many processes send.
        workers: How many processes consume.
        slots: The topic's.
        site: What it runs with; redis-py knows no such things.
    """
    share = number // senders
    send, consume = (_send_stream, _consume_stream) if KINDS[kind].type is None else (_send, _consume)
    args = [(servers.url, kind, slots, site, first * share, share, rate / senders) for first in range(senders)]
    owned = slots // workers if site.owners else 0
    consuming = [Child(consume, servers.url, kind, slots, site, owned) for _ in range(workers)]
    sending = [Child(send, *each) for each in args]
    try:
        for child in (*consuming, *sending):
            child.wait_ready()
        if site.warm_up:
            _warm_up(consuming, sending, site.warm_up)
        with Meter(servers) as meter, Meter(servers.replicas) as replicas:
            for child in (*consuming, *sending):
                child.go()
            sent = [child.result(LIMIT_S) for child in sending]
            _await(consuming, share * senders)
        for child in consuming:
            child.go()
        consumed = [child.result(LIMIT_S) for child in consuming]
    finally:
        for child in (*consuming, *sending):
            child.end()
    number, cost = share * senders, meter.cost
    from_s, until_s = min(each["progress"][0][0] for each in sent), max(each["progress"][-1][0] for each in sent)
    ended_s = max(each["progress"][-1][0] for each in consumed if each["progress"])
    sends, takes = ([each["progress"] for each in side] for side in (sent, consumed))
    return {
        "sent_per_s": number / (until_s - from_s),
        "both_rate_per_s": number / (ended_s - from_s),
        "drain_s": ended_s - until_s,
        **backlogs(sends, takes),
        **_lateness(sends, share, KINDS[kind], chain.from_iterable(each["seen"] for each in consumed)),
        "sender_cpu_us": sum(each["cpu_s"] for each in sent) * 1e6 / number,
        "consumer_cpu_us": sum(each["cpu_s"] for each in consumed) * 1e6 / number,
        "sender_peak_mb": max(each["peak_mb"] for each in sent),
        "consumer_peak_mb": max(each["peak_mb"] for each in consumed),
        "server_us": cost.executing_us(*COMMANDS) / number,
        "server_cpu_us": cost.server_cpu_s * 1e6 / number,
        "replica_cpu_us": replicas.cost.server_cpu_s * 1e6 / number,
        "server_busy_share": cost.server_cpu_s / (ended_s - from_s) / len(servers.ports),
        "calls_per_1000": sum(cost.calls.get(name, 0) for name in (*CLIENT_SIDE, *COMMANDS[1:])) * 1000 / number,
    }


def _warm_up(consuming: Sequence[Child], sending: Sequence[Child], number: int) -> None:
    """Start the workers, wait until each owns its share, and let so many messages pass, which do not count."""
    for child in consuming:
        child.go()
    for child in consuming:
        child.wait_ready()
    for child in sending:
        child.go()
        child.wait_ready()
    _await(consuming, number)
    for child in consuming:
        child.go()
        child.wait_ready()


def backlogs(sent: Sequence[Progress], consumed: Sequence[Progress]) -> dict[str, float]:
    """Return the backlog when the sends end, its mean, and by which share of the later sends it grew meanwhile.

    It grew from its mean in the second fifth of the time of the sends to that in the last fifth.
    """
    from_s, until_s = min(each[0][0] for each in sent), max(each[-1][0] for each in sent)
    times_s = [from_s + (until_s - from_s) * point / 100 for point in range(101)]
    done = [[sum(_done(each, at_s) for each in side) for at_s in times_s] for side in (sent, consumed)]
    backlog = [out - back for out, back in zip(*done, strict=True)]
    early, late = sum(backlog[20:40]) / 20, sum(backlog[80:100]) / 20
    meanwhile = sum(done[0][80:100]) / 20 - sum(done[0][20:40]) / 20
    return {
        "backlog_end": backlog[-1],
        "backlog_mean": sum(backlog) / len(backlog),
        "growth_share": (late - early) / meanwhile if meanwhile else 0.0,
    }


def _done(progress: Progress, at_s: float) -> int:
    place = bisect_right(progress, at_s, key=lambda noted: noted[0])
    return progress[place - 1][1] if place else 0


def _lateness(
    sent: Sequence[Progress], share: int, kind: Kind, seen: Iterable[tuple[float, bytes]]
) -> dict[str, float]:
    """Return percentiles of the time from a send, or on time topics from when the message is due, to the handler."""
    delay_ms = DELAY_MS if kind.type is not None and kind.type.timed else 0
    late_ms: list[float] = []
    for at_s, content in seen:
        number, index = divmod(loads.index_of(content), share)
        noted = sent[number]
        place = bisect_right(noted, index, key=lambda each: each[1])
        late_ms.append((at_s - noted[place][0]) * 1000 - delay_ms)
    return {f"late_{name}_ms": value for name, value in percentiles(late_ms).items()}


def _await(consuming: Sequence[Child], number: int) -> None:
    """Wait until so many messages were delivered."""
    deadline_s, left = time.monotonic() + LIMIT_S, number
    while left > 0:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{left} of {number} messages were not delivered")
        time.sleep(0.01)
        left -= sum(sum(child.news()) for child in consuming)


def _send(
    line: Line, url: str, kind: str, slots: int, site: Site, first: int, number: int, rate: float
) -> dict[str, Any]:
    topic_type, columns, cargo, _ = KINDS[kind]
    assert topic_type is not None
    priorities = loads.priorities(10_000)
    progress: Progress = []
    with RmqClient(url, durability=site.durability) as client:
        topic = loads.topic(topic_type, slots, cargo=cargo)
        producer = client.producer(topic)
        pieces = _pieces(first, number, rate, ROWS if columns else PIECE if site.batch else 1, progress)
        send: Any = producer.send_many if site.batch else lambda messages: deque(map(producer.send, messages), 0)
        line.ready()
        if site.warm_up:
            send(loads.soon(topic_type, loads.stream(first - site.warm_up, first), priorities, DELAY_MS))
            line.ready()
        used_s = cpu_s()
        if columns:
            for rows in pieces:
                _send_columns(producer, topic_type, rows, priorities)
            return _sent(progress, number, used_s)
        left = chain.from_iterable(pieces)
        while True:
            try:
                if cargo:
                    send(loads.laden(topic, cargo, left, DELAY_MS))
                else:
                    send(loads.soon(topic_type, left, priorities, DELAY_MS))
                return _sent(progress, number, used_s)
            except FixedTimePassedError as error:  # the machine stood still: go on with a new time
                left = chain([message.content for message in error.not_stored], left)


def _send_columns(producer: Producer, topic_type: TopicType, contents: Sequence[bytes], priorities: list[int]) -> None:
    while contents:
        try:
            producer.send_columns(contents, **loads.soon_in_columns(topic_type, len(contents), priorities, DELAY_MS))
            return
        except FixedTimePassedError as error:
            contents = [contents[row] for row in error.not_stored]


def _send_stream(
    line: Line, url: str, kind: str, slots: int, site: Site, first: int, number: int, rate: float
) -> dict[str, Any]:
    del kind, slots, site
    progress: Progress = []
    with redis.Redis.from_url(url) as client:
        client.ping()
        pieces = _pieces(first, number, rate, loads.BATCH, progress)
        line.ready()
        used_s = cpu_s()
        for piece in pieces:
            pipe = client.pipeline(transaction=False)
            for content in piece:
                pipe.xadd(STREAM, {"c": content})
            pipe.execute()
        return _sent(progress, number, used_s)


def _pieces(first: int, number: int, rate: float, size: int, progress: Progress) -> Iterator[list[bytes]]:
    """Return the contents piece by piece, at a rate; each piece is noted when it is taken.

    Without a rate the contents are made beforehand: what makes them is no part of what is measured.
    """
    if rate:
        return _paced(loads.stream(first, first + number), rate, max(1, min(size, int(rate / 20))), progress)
    return _paced(iter(loads.contents(number, first)), rate, size, progress)


def _paced(contents: Iterator[bytes], rate: float, size: int, progress: Progress) -> Iterator[list[bytes]]:
    done = 0
    while piece := list(islice(contents, size)):
        if rate and progress:
            time.sleep(max(0.0, progress[0][0] + done / rate - time.time()))
        done += len(piece)
        progress.append((time.time(), done))
        yield piece


def _sent(progress: Progress, number: int, used_s: float) -> dict[str, Any]:
    progress = [*progress, (time.time(), number)]  # the last one: all is answered
    return {"progress": progress, "cpu_s": cpu_s() - used_s, "peak_mb": peak_mb()}


class _Seen:
    """What a consumer has seen: its progress, and now and then a content with its time. Threads share it."""

    def __init__(self) -> None:
        self.progress: Progress = []
        self.contents: list[tuple[float, bytes]] = []
        self._counting, self._done, self._told = threading.Lock(), 0, 0

    def note(self, number: int, content: bytes) -> None:
        with self._counting:
            now_s = time.time()
            self._done += number
            self.progress.append((now_s, self._done))
            self.contents.append((now_s, content))

    def report(self, line: Line) -> None:
        """Report how many came since."""
        with self._counting:
            fresh, self._told = self._done - self._told, self._done
        if fresh:
            line.report(fresh)

    def report_until_told(self, line: Line) -> None:
        """Report now and then, until the parent says something."""
        while not line.told():
            time.sleep(0.05)
            self.report(line)

    def result(self, used_s: float) -> dict[str, Any]:
        found = {"progress": self.progress, "seen": self.contents}
        return {**found, "cpu_s": cpu_s() - used_s, "peak_mb": peak_mb()}


def _consume(line: Line, url: str, kind: str, slots: int, site: Site, owned: int) -> dict[str, Any]:
    topic_type, columns, cargo, _ = KINDS[kind]
    assert topic_type is not None
    seen, places, read = _Seen(), random.Random(20), loads.reader(cargo)

    def handle(found: Any) -> None:
        found = found if site.batch else [found]
        read(found)
        number = len(found)
        place = int(places.random() * number)
        seen.note(number, found.contents[place] if columns else found[place].content)

    owners: dict[str, Any] = {**(site.owners or {})}
    if "zookeeper" in owners:
        hosts, chroot = owners["zookeeper"]
        owners["zookeeper"] = Coordinator(hosts, chroot=chroot)
    with RmqClient(url, **owners) as client:
        topic = loads.topic(topic_type, slots, cargo=cargo)
        client.listener(topic, batch=site.batch, columns=columns, threads=THREADS)(handle)
        line.ready()
        used_s = cpu_s()
        client.start()
        if site.warm_up:
            wait_until(lambda: owned_by(client) >= owned, LIMIT_S, "a share of the slots")
            line.report(0)
            seen.report_until_told(line)
            line.hear()
            seen = _Seen()
            line.ready()
            used_s = cpu_s()
        seen.report_until_told(line)
        found = seen.result(used_s)
        client.stop()
    return found


def _consume_stream(line: Line, url: str, kind: str, slots: int, site: Site, owned: int) -> dict[str, Any]:
    del slots, site, owned
    seen, places, told_s = _Seen(), random.Random(20), 0.0
    with redis.Redis.from_url(url) as client:
        client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        line.ready()
        used_s = cpu_s()
        while not line.told():
            found: Any = client.xreadgroup(GROUP, "worker", {STREAM: ">"}, count=loads.BATCH, block=50)
            for _, entries in found or ():
                ids = [entry_id for entry_id, _ in entries]
                client.xack(STREAM, GROUP, *ids)
                if KINDS[kind].deletes:
                    client.xdel(STREAM, *ids)
                seen.note(len(entries), entries[int(places.random() * len(entries))][1][b"c"])
            if time.time() - told_s > 0.05:
                seen.report(line)
                told_s = time.time()
        return seen.result(used_s)
