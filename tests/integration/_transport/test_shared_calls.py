"""Calls that threads and tasks make one at a time share round trips: each gets its own reply, whatever happens.

The round trip that the others wait for is that of a BLPOP, which ends once something is pushed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest
from greenlet import greenlet

from rmq import (
    Collect,
    Consumer,
    Delivery,
    FixedTimeMessage,
    Merge,
    PriorityMessage,
    RmqClient,
    StreamMessage,
    Topic,
    TopicType,
    aio,
)
from rmq.errors import (
    BacklogFullError,
    ClientClosedError,
    FixedTimePassedError,
    RedisUnavailableError,
    ReplyLostError,
    RmqError,
    ScriptFailedError,
    TopicDeletedError,
)
from tests.support.core import (
    MOST_IDLE,
    Call,
    Connections,
    Encoder,
    EventLoop,
    GreenletTask,
    Message,
    Outcomes,
    QueueBroker,
    parse_url,
    plain,
    slot_keys,
)
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.topologies import RedisClusterServers
from tests.support.waiting import wait_until

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def topic_of(server: RedisServer, type_: TopicType = TopicType.PRIORITY, **settings: Any) -> Topic:
    options: dict[str, Any] = {"slots": 4} | settings
    topic = Topic(f"shared{next(_numbers)}", type_, **options)
    with RmqClient(server.url) as client:
        return client.producer(topic).topic


def send(connections: Connections, topic: Topic, message: Message) -> Callable[[], Any]:
    """A send, as a producer makes it."""
    encoded = Encoder(topic).one(message)
    call = QueueBroker(connections, topic).send_call(encoded.slot, (encoded,), topic.type is TopicType.STREAM)
    return lambda: connections.run_shared(call)


class Threads:
    """Callers that are threads. The first calls occupy what may be under way until `release`."""

    def __init__(self, url: str, server: RedisServer, **options: Any) -> None:
        self._server = server
        self._gate = f"gate{next(_numbers)}"
        self._made: list[Any] = []
        self.url = url
        self.options: dict[str, Any] = {"timeout_s": 60.0} | options

    def __enter__(self) -> Threads:
        self._threads = ThreadPoolExecutor(80)
        self.connections = self._connected()
        places = self.connections.runtime.calls_at_once
        self.first = [self._start(lambda: self.connections.run_shared(self._blocked())) for _ in range(places)]
        wait_until(lambda: self._clients("blocked_clients") == places)
        return self

    def __exit__(self, *_: object) -> None:
        self.release(whole=True)
        self._threads.shutdown()
        self.connections.close()

    def begin(self, action: Callable[[], Any]) -> Any:
        """Let a caller begin, and return what has its result once it waits for the first call."""
        waiting = self.waiting
        began = self._start(action)
        wait_until(lambda: self.waiting == waiting + 1)
        return began

    @property
    def waiting(self) -> int:
        node = self.connections.router.node_for(self._gate)
        return len(node.combiner._waiting)  # pyright: ignore[reportPrivateUsage]

    def release(self, *, whole: bool = False) -> None:
        with self._server.connect() as client:
            client.rpush(self._gate, *["go"] * (len(self.first) if whole else 1))

    def do(self, action: Callable[[], Any]) -> Any:
        """Let a caller begin that need not wait; return its result."""
        return self._start(action).result(60)

    def outcome(self, began: Any) -> Any:
        """The result of a caller, or its error."""
        try:
            return began.result(60)
        except Exception as error:
            return error

    def _start(self, action: Callable[[], Any]) -> Any:
        return self._threads.submit(action)

    def _connected(self) -> Connections:
        return Connections(parse_url(self.url), **self.options)

    def _blocked(self) -> Call[Any]:
        return plain("BLPOP", self._gate, 0)._replace(repeatable=False)

    def _clients(self, what: str) -> int:
        with self._server.connect() as client:
            return int(client.info("clients")[what])


class Tasks(Threads):
    """Callers that are asyncio tasks."""

    def __enter__(self) -> Tasks:
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._loop.run_forever)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.release(whole=True)
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.shutdown()
        self._threads.shutdown()
        self._loop.close()

    async def _close(self) -> None:
        await asyncio.gather(*(task for task in asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        await GreenletTask(self.connections.close).drive()

    def _start(self, action: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(GreenletTask(action).drive(), self._loop)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _connected(self) -> Connections:
        async def connect() -> Connections:
            return Connections(parse_url(self.url), runtime=EventLoop(), **self.options)

        return self._run(connect())


@pytest.fixture(params=[Threads, Tasks])
def kind(request: pytest.FixtureRequest) -> type[Threads]:
    return request.param


@pytest.fixture
def callers(kind: type[Threads], server: RedisServer) -> Iterator[Threads]:
    with kind(server.url, server) as callers:
        yield callers


def calls_of(server: RedisServer, command: str = "evalsha") -> int:
    with server.connect() as client:
        stats: Any = client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def outcomes(callers: Threads, actions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Let callers begin one after the other, then end the call for which they wait; return the outcome of each."""
    began = [callers.begin(action) for action in actions]
    callers.release()
    return [callers.outcome(each) for each in began]


def load_scripts(server: RedisServer) -> None:
    """Let the server know the scripts that send and settle."""
    topic = topic_of(server)
    with RmqClient(server.url) as client:
        client.producer(topic).send(PriorityMessage("m", 1))
        client.consumer(topic).poll(1)[0].ack()
        client.producer(topic_of(server, TopicType.STREAM)).send(StreamMessage("s"))


def claimed(
    client: RmqClient, connections: Connections, topic: Topic
) -> tuple[list[Delivery], list[Callable[[], Any]]]:
    """Six deliveries, and an ack of each."""
    client.producer(topic).send_many(PriorityMessage(f"m{index}", 1) for index in range(6))
    deliveries = client.consumer(topic).poll(6)
    settle = QueueBroker(connections, topic).settle_call
    calls = [settle(each.slot, Outcomes([(each.content, each.claim_score)])) for each in deliveries]
    return deliveries, [partial(connections.run_shared, call) for call in calls]


def test_sends_that_wait_are_one_script_call_and_each_has_its_result(callers: Threads, server: RedisServer) -> None:
    topic, other = topic_of(server), topic_of(server, slots=2)
    load_scripts(server)
    messages = [PriorityMessage(f"m{index % 20}", index + 1) for index in range(40)]
    actions = [send(callers.connections, topic, each) for each in messages]
    actions += [send(callers.connections, other, PriorityMessage("other", 1))]
    before = calls_of(server)
    results = outcomes(callers, actions)
    assert calls_of(server) - before == 1
    assert [(each.new, each.merged) for each in results] == [(1, 0)] * 20 + [(0, 1)] * 20 + [(1, 0)]
    with RmqClient(server.url) as client:
        assert client.inspect(topic).stats().backlog == 20
        stored = client.inspect(topic).find("m3").stored
        assert stored is not None
        assert stored.priority == 24


def test_a_script_that_the_server_forgot_is_loaded_by_each_caller(callers: Threads, server: RedisServer) -> None:
    topic = topic_of(server)
    with server.connect() as client:
        client.script_flush()
    results = outcomes(
        callers, [send(callers.connections, topic, PriorityMessage(f"m{index}", 1)) for index in range(8)]
    )
    assert [each.new for each in results] == [1] * 8


def test_only_the_message_that_breaks_a_rule_is_refused(callers: Threads, server: RedisServer) -> None:
    load_scripts(server)  # else each of them is sent again alone, in any order
    timed, bounded = topic_of(server, TopicType.FIXED_TIME), topic_of(server, slots=1, max_backlog=2)
    spoilt = topic_of(server, slots=1)
    with server.connect() as client:
        client.set(slot_keys(spoilt.name, 0).store, "of another program")
    connections = callers.connections
    results = outcomes(
        callers,
        [
            send(connections, timed, FixedTimeMessage("past", fixed_time_ms=1_000)),
            send(connections, timed, FixedTimeMessage("ahead", fixed_time_ms=4_000_000_000_000)),
            *[send(connections, bounded, PriorityMessage(f"b{index}", 1)) for index in range(3)],
            send(connections, bounded, PriorityMessage("b0", 1)),
            send(connections, spoilt, PriorityMessage("s", 1)),
        ],
    )
    kinds = [type(each) if isinstance(each, RmqError) else each.new for each in results]
    assert kinds == [FixedTimePassedError, 1, 1, 1, BacklogFullError, 0, TopicDeletedError]
    assert spoilt.name in str(results[-1])


def test_a_slot_without_rights_is_refused_alone(kind: type[Threads], server: RedisServer) -> None:
    allowed, refused = topic_of(server), topic_of(server)
    with server.connect() as client:
        client.acl_setuser(
            "half", enabled=True, passwords=["+half"], keys=[f"*{allowed.name}*", "gate*"], categories=["+@all"]
        )
    url = server.url.replace("redis://", "redis://half:half@")
    with kind(url, server) as callers:
        pairs = [(PriorityMessage(f"m{index}", 1), topic) for index in range(3) for topic in (allowed, refused)]
        results = outcomes(callers, [send(callers.connections, topic, message) for message, topic in pairs])
    assert [each.new for each in results[::2]] == [1] * 3
    assert {type(each) for each in results[1::2]} <= {ScriptFailedError, ReplyLostError}


def test_calls_that_cannot_be_joined_share_the_request(callers: Threads, server: RedisServer) -> None:
    stream = topic_of(server, TopicType.STREAM, slots=2)
    merging = topic_of(server, merge=Merge(reduce=Collect()), slots=2)
    connections = callers.connections
    actions = [send(connections, stream, StreamMessage(f"s{index}")) for index in range(3)]
    actions += [send(connections, merging, PriorityMessage("m", 1, body=b"x")) for _ in range(3)]
    results = outcomes(callers, actions)
    assert len({each.ids for each in results[:3]}) == 3
    assert sorted(each.new for each in results[3:]) == [0, 0, 1]
    with RmqClient(server.url) as client:
        assert len(client.consumer(merging).poll(1)[0].items) == 3


def test_acks_are_one_script_call_and_a_lost_lease_is_told_to_its_own_caller(
    callers: Threads, server: RedisServer
) -> None:
    topic = topic_of(server)
    load_scripts(server)
    with RmqClient(server.url) as client:
        deliveries, calls = claimed(client, callers.connections, topic)
        deliveries[2].release()
        before = calls_of(server)
        replies = outcomes(callers, calls)
        assert calls_of(server) - before == 1
        assert [each.stale for each in replies] == [(), (), (deliveries[2].content,), (), (), ()]
        assert client.inspect(topic).stats().total("acked") == 5


def test_an_ack_in_several_slots_is_not_joined_again(callers: Threads, server: RedisServer) -> None:
    topic = topic_of(server)
    with RmqClient(server.url) as client:
        client.producer(topic).send_many(PriorityMessage(f"m{index}", 1) for index in range(8))
        deliveries = client.consumer(topic).poll(8)
        assert len({each.slot for each in deliveries}) > 2
        consumers: list[Consumer] = [callers.do(lambda: Consumer(callers.connections, topic)) for _ in range(2)]
        acks = [partial(consumers[index].ack, deliveries[index::2]) for index in range(2)]
        assert outcomes(callers, acks) == [[], []]
        assert client.inspect(topic).stats().total("acked") == 8


def test_acks_without_a_reply_are_not_repeated(kind: type[Threads], server: RedisServer) -> None:
    topic = topic_of(server)
    load_scripts(server)
    with (
        Proxy(server.port) as proxy,
        RmqClient(server.url) as client,
        kind(proxy.url, server) as callers,
    ):
        _, calls = claimed(client, callers.connections, topic)
        proxy.cut_before_reply(command="EVALSHA")
        results = outcomes(callers, calls)
        assert {type(each) for each in results} == {ReplyLostError}
        assert client.inspect(topic).stats().total("acked") == 6


def test_sends_without_a_reply_are_repeated_by_each_caller(kind: type[Threads], server: RedisServer) -> None:
    topic = topic_of(server)
    load_scripts(server)
    with Proxy(server.port) as proxy, kind(proxy.url, server) as callers:
        proxy.cut_before_reply(command="EVALSHA")
        actions = [send(callers.connections, topic, PriorityMessage(f"m{index}", 1)) for index in range(8)]
        results = outcomes(callers, actions)
    assert [each.accepted for each in results] == [1] * 8
    with RmqClient(server.url) as client:
        assert client.inspect(topic).stats().backlog == 8


def test_callers_do_not_wait_one_after_the_other_for_a_server_that_is_gone(
    kind: type[Threads], server: RedisServer
) -> None:
    topic = topic_of(server)
    with Proxy(server.port) as proxy, kind(proxy.url, server, timeout_s=60.0, deadline_s=1.0) as callers:
        actions = [send(callers.connections, topic, PriorityMessage(f"m{index}", 1)) for index in range(8)]
        began = [callers.begin(each) for each in actions]
        proxy.refuse_connections()
        proxy.cut_now()
        assert {type(callers.outcome(each)) for each in began} == {RedisUnavailableError}
        assert {type(callers.outcome(each)) for each in callers.first} == {ReplyLostError}
        proxy.normal()
        assert callers.do(actions[0]).accepted == 1


def test_of_a_cluster_only_calls_of_one_slot_are_joined(kind: type[Threads]) -> None:
    with RedisClusterServers(1) as cluster:
        [server] = cluster.servers
        with RmqClient(cluster.url) as client:
            topic = client.producer(Topic("shared", TopicType.PRIORITY, slots=4)).topic
            client.producer(topic).send(PriorityMessage("loads the script", 1))
        with kind(cluster.url, server) as callers:
            names = [f"m{index}" for index in range(12)]
            slots = {topic.slot_of(name.encode()) for name in names}
            actions = [send(callers.connections, topic, PriorityMessage(name, 1)) for name in names]
            before = calls_of(server)
            assert [each.new for each in outcomes(callers, actions)] == [1] * 12
            assert calls_of(server) - before == len(slots) > 1


@pytest.mark.parametrize("cancelled", [0, 3, 7], ids=["who would combine", "in the middle", "the last one"])
def test_a_cancelled_task_harms_no_other_and_nothing_is_appended_twice(server: RedisServer, cancelled: int) -> None:
    topic = topic_of(server, TopicType.STREAM, slots=1)
    with Tasks(server.url, server) as callers:
        began = [callers.begin(send(callers.connections, topic, StreamMessage(f"s{index}"))) for index in range(8)]
        began[cancelled].cancel()
        wait_until(lambda: callers.waiting == 7)
        callers.release()
        others = [each for index, each in enumerate(began) if index != cancelled]
        assert [type(callers.outcome(each)).__name__ for each in others] == ["SendResult"] * 7
        assert callers.waiting == 0
        assert callers.do(send(callers.connections, topic, StreamMessage("after"))).new == 1
    with RmqClient(server.url) as client:
        names = [each.text for each in client.stream(topic).range()]
        assert sorted(names) == sorted([*[f"s{index}" for index in range(8) if index != cancelled], "after"])


def test_a_combining_caller_that_is_cancelled_still_serves_the_others(server: RedisServer) -> None:
    topic = topic_of(server, TopicType.STREAM, slots=1)
    load_scripts(server)
    with Proxy(server.port) as proxy, Tasks(proxy.url, server) as callers:
        began = [callers.begin(send(callers.connections, topic, StreamMessage(f"s{index}"))) for index in range(8)]
        proxy.delay_replies(0.5, command="EVALSHA")
        before = calls_of(server)
        callers.release()
        wait_until(lambda: calls_of(server) == before + 8)
        began[0].cancel()
        assert [type(callers.outcome(each)).__name__ for each in began[1:]] == ["SendResult"] * 7
    with RmqClient(server.url) as client:
        assert sorted(each.text for each in client.stream(topic).range()) == [f"s{index}" for index in range(8)]


def test_more_calls_than_one_request_takes_are_all_carried_out(callers: Threads, server: RedisServer) -> None:
    topic = topic_of(server)
    load_scripts(server)
    before = calls_of(server)
    actions = [send(callers.connections, topic, PriorityMessage(f"m{index}", 1)) for index in range(68)]
    assert [each.new for each in outcomes(callers, actions)] == [1] * 68
    assert calls_of(server) - before == 2


def test_a_large_message_goes_alone(callers: Threads, server: RedisServer) -> None:
    topic = topic_of(server)
    encoded = Encoder(topic).one(PriorityMessage("large", 1, body=b"x" * 100_000))
    call = QueueBroker(callers.connections, topic).send_call(encoded.slot, (encoded,))
    assert callers.do(lambda: callers.connections.run_shared(call, 100_005.0)).new == 1
    assert callers.waiting == 0


def test_the_main_thread_and_nested_calls_wait_for_nobody(server: RedisServer) -> None:
    """A signal handler may send while the main thread sends, and a log handler while a thread does."""
    topic = topic_of(server)
    with Threads(server.url, server) as callers:
        main = send(callers.connections, topic, PriorityMessage("main", 1))
        assert main().new == 1
        inner = send(callers.connections, topic, PriorityMessage("inner", 1))
        shared = callers.connections._shared_calls  # pyright: ignore[reportPrivateUsage]
        call = plain("GET", "key")

        def nested() -> Any:
            return shared.execute(call, lambda node, call: shared.execute(call, lambda node, call: inner()))

        began = callers.begin(nested)
        callers.release()
        assert callers.outcome(began).new == 1


def test_a_log_handler_may_send_while_its_thread_sends(server: RedisServer) -> None:
    """A new connection warns about a server that evicts, within the call that needs it."""
    topic = topic_of(server)
    sent: list[int] = []

    class Sending(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sent.append(producer.send(PriorityMessage(f"log {record.getMessage()[:20]}", 1)).accepted)

    handler, policy = Sending(), "maxmemory-policy"
    with RmqClient(server.url) as client, server.connect() as redis, ThreadPoolExecutor(1) as threads:
        producer = client.producer(topic)
        logging.getLogger("rmq").addHandler(handler)
        redis.config_set(policy, "volatile-lru")
        try:
            redis.client_kill_filter(_type="normal", skipme=True)
            assert threads.submit(producer.send, PriorityMessage("m", 1)).result(60).accepted == 1
        finally:
            redis.config_set(policy, "noeviction")
            logging.getLogger("rmq").removeHandler(handler)
    assert sent
    assert set(sent) == {1}


@pytest.mark.parametrize("end", ["close", "cancel all"])
def test_tasks_end_when_the_client_closes_or_every_task_is_cancelled(server: RedisServer, end: str) -> None:
    topic = topic_of(server)

    async def once(after_s: float) -> list[Any]:
        client = aio.RmqClient(server.url)
        producer = await client.producer(topic)

        async def keep_sending(number: int) -> None:
            while True:
                await producer.send(PriorityMessage(f"m{number}", 1))

        senders = [asyncio.create_task(keep_sending(number)) for number in range(50)]
        await asyncio.sleep(after_s)
        if end == "cancel all":
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            async with asyncio.timeout(30):
                await asyncio.wait(senders)
                await producer.send(PriorityMessage("after", 1))
        await client.close()
        async with asyncio.timeout(30):
            return await asyncio.gather(*senders, return_exceptions=True)

    for part in range(8):
        kinds = {type(each) for each in asyncio.run(once(0.02 + 0.003 * part))}
        assert kinds <= {ClientClosedError, asyncio.CancelledError}


def test_a_process_keeps_few_idle_greenlets(server: RedisServer) -> None:
    topic = topic_of(server)

    async def send_at_once() -> None:
        async with aio.RmqClient(server.url) as client:
            producer = await client.producer(topic)
            await asyncio.gather(*(producer.send(PriorityMessage(f"m{index}", 1)) for index in range(2 * MOST_IDLE)))

    for _ in range(3):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, send_at_once()).result(60)
    gc.collect()
    assert sum(issubclass(type(each), greenlet) for each in gc.get_objects()) < 2 * MOST_IDLE
