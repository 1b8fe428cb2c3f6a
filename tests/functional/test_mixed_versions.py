"""Processes of a released version and of this one share the slots of a topic, step by step in turn.

What they have in common is what is stored: keys, scores, documents. A test that fails here says that this version has
changed a stored form, or what it does with one, so that it may not run beside that release (docs/operate/versions.md).
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq import TopicType
from tests.conftest import MakeTopic
from tests.support import releases

CONSOLE = releases.ROOT / "tests/support/peer.py"


class Peer:
    """A process of one version; calling it evaluates Python there."""

    def __init__(self, folder: Path, url: str) -> None:
        command = [sys.executable, "-I", str(CONSOLE), str(folder), url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, source: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(source), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"error": "ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        try:
            return ast.literal_eval(answer["value"])
        except (ValueError, SyntaxError):  # what only that version knows, such as a client
            return answer["value"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


Story = Callable[[Peer, Peer, str], None]


def define(a: Peer, b: Peer, name: str, settings: str) -> None:
    for each in (a, b):
        each(f"t = Topic({name!r}, {settings})")


def retries_and_dead(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, slots=2, max_retries=1, retry=ImmediateRetry(), keep_attempts=2")
    assert a("send(*(RangeMergeMessage(each, '1ms', body=each + '1') for each in 'abc'))") == (3, 0)
    assert b("send(RangeMergeMessage('a', '1h', body='a2'), RangeMergeMessage('d', '1ms'))") == (1, 1)
    assert sorted(a("take(4)")) == [("a", b"a2", 1), ("b", b"b1", 1), ("c", b"c1", 1), ("d", None, 1)]
    assert b("counts()") == (0, 4, 0, 0, 0)
    a("held['a'].ack(), held['b'].nack(error='first'), held['c'].bury(error=KeyError('c')), held['d'].release()")
    assert sorted(b("take(2)")) == [("b", b"b1", 2), ("d", None, 1)]
    b("held['b'].nack(error=ValueError('second')), held['d'].nack('1h')")
    assert a("dead()") == [("b", b"b1", "ValueError", 2), ("c", b"c1", "KeyError", 1)]
    assert a("[each.error_type for each in client.inspect(t).find('b').dead.history]") == ["ValueError", ""]
    assert a("counts()") == (0, 0, 1, 2, 0)
    assert a("client.dead(t).redrive().redriven") == 2
    a("client.control(t).promote('d')")
    assert sorted(b("take(3)")) == [("b", b"b1", 1), ("c", b"c1", 1), ("d", None, 2)]
    assert a("client.inspect(t).stats().total('redriven')") == 2
    b("[each.ack() for each in held.values() if not each.outcome]")
    assert a("counts()") == (0, 0, 0, 0, 0)


def priorities_and_ties(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.PRIORITY, max_retries=3, retry=ImmediateRetry()")
    for each, sends in ((a, "('first', 7)"), (b, "('second', 7)"), (a, "('third', 7)"), (b, "('top', 9)")):
        each(f"send(PriorityMessage(*{sends}))")
        each("time.sleep(0.15)")  # ages count tenths of a second
    assert a("send(PriorityMessage('second', 7), PriorityMessage('low', 1))") == (1, 1)
    order = [("top", 9), ("first", 7), ("second", 7), ("third", 7), ("low", 1)]
    for each in (a, b):
        assert each("[(each.text, each.priority) for each in client.inspect(t).peek()]") == order
    b("client.control(t).reprioritise('low', 8)")
    assert a("take(2)") == [("top", None, 1), ("low", None, 1)]
    assert b("take(1)") == [("first", None, 1)]
    a("held['top'].nack(), held['low'].ack()")
    assert b("take(3)") == [("second", None, 1), ("third", None, 1), ("top", None, 2)]
    b("[each.ack() for each in held.values()]")


def ties_in_any_order(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.PRIORITY, max_retries=3, ties='any'")
    assert a("send(PriorityMessage('five', 5), PriorityMessage('six', 6))") == (2, 0)
    assert b("send(PriorityMessage('six', 4), PriorityMessage('seven', 7))") == (1, 1)
    assert b("[(each.text, each.priority) for each in client.inspect(t).peek()]") == [
        ("seven", 7),
        ("five", 5),
        ("six", 4),
    ]
    assert a("take(3)") == [("seven", None, 1), ("five", None, 1), ("six", None, 1)]
    a("held['five'].nack(), held['seven'].ack(), held['six'].ack()")
    assert b("take(1)") == [("five", None, 2)]
    b("held['five'].ack()")


def at_a_time(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.FIXED_TIME, slots=2")
    at_ms = a("(at := int(time.time() * 1000) + 3_600_000)")
    a(f"send(FixedTimeMessage('later', fixed_time_ms={at_ms}, body='l'), FixedTimeMessage('soon', delay='1ms'))")
    assert b("[(each.text, each.due_ms) for each in client.inspect(t).peek()][1:]") == [("later", at_ms)]
    assert b("take(1)") == [("soon", None, 1)]
    assert a("send(FixedTimeMessage('soon', delay='1ms', body='again'))") == (1, 0)
    b("held['soon'].ack()")
    b("client.control(t).reschedule('later', due_in='0s')")
    assert sorted(a("take(2)")) == [("later", b"l", 1), ("soon", b"again", 1)]
    a("[each.ack() for each in held.values()]")


def leases_of_the_killed(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, max_retries=1, lease='3s'")
    a("send(RangeMergeMessage('a', '1ms', body='1'))")
    assert a("take(1)") == [("a", b"1", 1)]
    a.end()
    assert b("take(1)") == [("a", b"1", 2)]
    b("held['a'].nack(error='b')")
    assert b("dead()") == [("a", b"1", "", 2)]
    b("client.dead(t).purge()")


def sums(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, slots=2, merge=Merge(Sum(), Fixed('300ms'))")
    assert a("send(RangeMergeMessage('x', body=2), RangeMergeMessage('y', body=0.5))") == (2, 0)
    assert b("send(RangeMergeMessage('x', body=3, weight=4), once='call')") == (0, 1)
    assert a("send(RangeMergeMessage('x', body=3, weight=4), once='call')") == (0, 1)
    assert a("client.inspect(t).find('x').stored.merged") == 5
    assert sorted(a("take(2)")) == [("x", 5, 1), ("y", 0.5, 1)]
    assert b("send(RangeMergeMessage('x', body=-1))") == (1, 0)
    assert b("client.inspect(t).find('x').in_flight.value") == 5
    a("held['x'].nack(), held['y'].bury('y')")
    assert b("take(1)") == [("x", 4, 1)]
    assert b("dead()") == [("y", 0.5, "", 1)]
    assert a("send(RangeMergeMessage('y', body=1))") == (1, 0)
    b("client.dead(t).redrive()")
    b("held['x'].ack()")
    assert a("take(1)")[0][:2] == ("y", 1.5)
    a("held['y'].ack()")


def joined_parts(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, merge=Merge(Collect(unique=True), max_count=PER_MESSAGE)")
    a("send(*[JoinMessage('order', 'part 1', of=3, time_range='1h')] * 2)")
    b("send(JoinMessage('order', 'part 2', of=3, time_range='1h'))")
    assert b("client.inspect(t).find('order').stored.item_count") == 2
    a("send(JoinMessage('order', 'part 3', of=3, time_range='1h'))")
    assert b("take(1)") == [("order", (b"part 1", b"part 2", b"part 3"), 1)]
    b("held['order'].ack()")


def versions_of_bodies(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.PRIORITY, merge=Merge(Newest(), priority='sum')")
    assert a("send(PriorityMessage('x', 2, body='new', version=9))") == (1, 0)
    assert b("send(PriorityMessage('x', 3, body='newer', version=10))") == (0, 1)
    assert a("send(PriorityMessage('x', 9, body='old', version=8))") == (0, 1)
    assert a("[(each.value, each.version, each.priority) for each in client.inspect(t).peek()]") == [(b"newer", 10, 5)]
    assert b("take(1)") == [("x", b"newer", 1)]
    assert a("send(PriorityMessage('x', 1, body='newest', version=11))") == (1, 0)
    b("held['x'].nack()")
    assert a("take(1)") == [("x", b"newest", 1)]
    a("held['x'].ack()")


def windows(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, merge=Merge(Keep(), Leading('1h'))")
    a("send(RangeMergeMessage('x', body='at once'))")
    assert b("take(1)") == [("x", b"at once", 1)]
    b("held['x'].ack()")
    assert b("send(RangeMergeMessage('x', body='within'))") == (1, 0)
    assert a("send(RangeMergeMessage('x', body='within, too'))") == (0, 1)
    assert a("client.inspect(t).peek()[0].due_ms > (time.time() + 3000) * 1000")
    b("client.control(t).promote('x')")
    assert a("take(1)") == [("x", b"within", 1)]
    a("held['x'].ack()")


def groups_of_a_stream(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.STREAM, slots=2, max_retries=1, retry=ImmediateRetry()")
    a("client.producer(t)")
    b("client.stream(t).add_group('g', 'all')")
    a("send(StreamMessage('a', body='1'), StreamMessage('b'))")
    b("send(StreamMessage({'field': 'c'}), StreamMessage('d'))")
    assert b("sorted(each.text for each in client.stream(t).range() if each.text in 'abd')") == ["a", "b", "d"]
    taken = [each[0] for each in a("take(2, group='g')")]
    taken += [each[0] for each in b("take(2, group='g')")]
    assert sorted(each for each in taken if each in ("a", "b", "d")) == ["a", "b", "d"]
    assert b("client.stream(t).group('g').pending") == 4
    a("[each.nack(error=KeyError('a')) for each in held.values()]")
    b("[each.ack() for each in held.values()], held.clear()")
    again = [each[0] for each in b("take(2, group='g')")]
    assert sorted(again) == sorted(taken[:2])
    b("[each.nack(error=KeyError('b')) for each in held.values()]")
    assert [each[2:] for each in a("dead('g')")] == [("KeyError", 2)] * 2
    assert b("client.stream(t).dead('g').redrive().redriven") == 2
    a("held.clear()")
    assert sorted(each[0] for each in a("take(2, group='g')")) == sorted(taken[:2])
    a("[each.ack() for each in held.values()]")
    b("client.stream(t).move_group('g', 'all')")
    assert sorted(each[0] for each in a("take(4, group='g')")) == sorted(taken)
    a("[each.ack() for each in held.values()]")
    assert b("(lambda g: (g.pending, g.dead, g.waiting, g.lag, g.unaccounted))(client.stream(t).group('g'))") == (
        (0,) * 5
    )


def delayed_values(a: Peer, b: Peer, name: str) -> None:
    for each in (a, b):
        each(f"q = DelayedQueue(client, {name!r}, slots=2)")
    a("q.offer_many([('x', '1ms'), ('y', '1ms')]), q.offer('never', '1h')")
    assert b("q.size()") == 3
    assert b("q.remove('never')")
    assert sorted([b("q.take(30)"), b("q.take(30)")]) == [b"x", b"y"]
    b("q.offer('z', '1ms')")
    assert a("q.take(30)") == b"z"
    for each in (a, b):
        each("q.close()")


def control_and_definitions(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, slots=2, max_backlog=100, ttl='1h', max_rate=1000")
    a("send(*(RangeMergeMessage(each, '1ms') for each in ('a', 'b', 'prefix:1', 'prefix:2')))")
    assert b("client.control(t).pause()") == 2
    assert a("client.consumer(t).poll(10, 0.3)") == []
    assert a("client.control(t).cancel_matching(prefix='prefix:').cancelled") == 2
    assert b("[each.paused for each in client.inspect(t).stats().slots]") == [True, True]
    assert a("client.control(t).resume()") == 2
    assert {"pause", "resume"} <= set(b("[each.action for each in client.inspect(t).audit()]"))
    b("client.change_topic(client.topic(t.name).changed(lease='90s', max_retries=2))")
    assert a("(lambda t: (t.lease_ms, t.max_retries, t.max_rate))(client.topic(t.name))") == (90_000, 2, 1000)
    a("client.update_topic(t.name, lambda t: t.changed(max_rate=None))")
    assert b("(lambda t: (t.lease_ms, t.max_retries, t.max_rate))(client.topic(t.name))") == (90_000, 2, None)
    a("producer = client.producer(t)")
    assert b("client.delete_topic(t.name, force=True).messages") == 2
    with pytest.raises(RuntimeError, match=r"^TopicDeletedError"):
        a("producer.send(RangeMergeMessage('a', '1ms'))")
    b("client = RmqClient(sys.argv[2])")
    assert b("send(RangeMergeMessage('a', '1ms'))") == (1, 0)
    a("client = RmqClient(sys.argv[2]); consumers.clear()")
    assert a("take(1)") == [("a", None, 1)]
    a("held['a'].ack()")


def workers_and_schedules(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, slots=4")
    a(f"plan = Schedule({name!r}, t, 'tick', every='1h', version=3)")
    a("client.producer(t), client.schedules.put(plan)")
    assert b(f"(lambda s: (s.content, s.rule, s.version))(client.schedules.get({name!r}).schedule)")[::2] == ("tick", 3)
    for each in (a, b):
        each("seen = []; client.listener(t)(lambda delivery: seen.append(delivery.text)); client.start()")
    for each in (a, b):
        each("wait(lambda: len([w for w in client.workers() if any(l.topic == t.name for l in w.listeners)]) == 2)")
    assert b(f"client.schedules.run_now({name!r})")
    b("send(*(RangeMergeMessage(f'job {number}', '1ms') for number in range(40)))")
    a("wait(lambda: client.inspect(t).stats().total('acked') >= 41)")
    assert sorted(a("seen") + b("seen")) == sorted(["tick", *(f"job {number}" for number in range(40))])
    assert a(f"client.schedules.remove({name!r})")
    for each in (a, b):
        each("client.stop()")


def owners_in_redis(a: Peer, b: Peer, name: str) -> None:
    define(a, b, name, "TopicType.RANGE_MERGE, slots=8")
    for each in (a, b):
        each("client = RmqClient(sys.argv[2], owners=RedisOwners(session_timeout_s=5))")
        each("seen = []; client.listener(t, threads=2)(lambda delivery: seen.append(delivery.text)); client.start()")
    owned = "[s for w in client.workers() for l in w.listeners if l.topic == t.name for s in l.slots]"
    half = "[len(l.slots) for w in client.workers() for l in w.listeners if l.topic == t.name] == [4, 4]"
    a(f"wait(lambda: {half})")
    assert sorted(b(owned)) == list(range(8))
    b("send(*(RangeMergeMessage(f'job {number}', '1ms') for number in range(40)))")
    b("wait(lambda: client.inspect(t).stats().total('acked') == 40)")
    assert 0 < len(a("seen")) < 40
    a.end()
    b("send(*(RangeMergeMessage(f'job {number}', '1ms') for number in range(40)))")
    b("wait(lambda: client.inspect(t).stats().total('acked') == 80)")
    b("client.stop()")


STORIES: dict[str, Story] = {
    each.__name__: each
    for each in (
        retries_and_dead, priorities_and_ties, ties_in_any_order, at_a_time, leases_of_the_killed, sums,
        joined_parts, versions_of_bodies, windows, groups_of_a_stream, delayed_values, control_and_definitions,
        workers_and_schedules, owners_in_redis,
    )
}  # fmt: skip


@contextmanager
def running(url: str, *folders: Path) -> Iterator[list[Peer]]:
    with ExitStack() as stack:
        peers = [Peer(folder, url) for folder in folders]
        for each in peers:
            stack.callback(each.end)
        yield peers


@pytest.fixture(scope="module", params=releases.released())
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    releases.unpack(request.param, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("released_first", [True, False], ids=["released first", "this one first"])
def test_versions_share_slots(
    release: Path, story: str, released_first: bool, redis_url: str, make_topic: MakeTopic
) -> None:
    order = (release, releases.ROOT) if released_first else (releases.ROOT, release)
    with running(redis_url, *order) as (a, b):
        STORIES[story](a, b, make_topic(TopicType.RANGE_MERGE, checked="stream" not in story).name)


PLANTED = {
    "ages of scores count from another day": (priorities_and_ties, {"1735689600000": "1735603200000"}),
    "another mark of records": (sums, {"\\0rm1": "\\0rm2", r"\x00rm1": r"\x00rm2", "d == 49": "d == 50"}),
    "another form of dead entries": (
        groups_of_a_stream,
        {"cmsgpack.pack(found[2])": "cjson.encode(found[2])", "cmsgpack.unpack(packed)": "cjson.decode(packed)"},
    ),
}
"""A stored form that has changed without a schema version -> the story that finds it, and the edits of a release."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_changed_form_is_found(name: str, tmp_path: Path, redis_url: str, make_topic: MakeTopic) -> None:
    """Processes of the edited release understand each other, and no others."""
    story, edits = PLANTED[name]
    releases.unpack("0.2.0", tmp_path)
    for path in (*tmp_path.rglob("*.lua"), *tmp_path.rglob("*.py")):
        text = path.read_text("utf-8")
        for before, after in edits.items():
            text = text.replace(before, after)
        path.write_text(text, "utf-8")
    with running(redis_url, tmp_path, tmp_path) as (a, b):
        story(a, b, make_topic(TopicType.RANGE_MERGE, checked=False).name)
    with running(redis_url, tmp_path, releases.ROOT) as (a, b), pytest.raises((AssertionError, RuntimeError)):
        story(a, b, make_topic(TopicType.RANGE_MERGE, checked=False).name)
