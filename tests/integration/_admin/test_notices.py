"""Who asked to be told of the dead learns of each: however it died, in threads, tasks and by a webhook."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import redis

from rmq import DeadMessage, PriorityMessage, RmqClient, StreamMessage, Topic, TopicType, Webhook, aio
from rmq.errors import InvalidValueError, WebhookError
from tests.conftest import MakeTopic
from tests.support.core import DeadNotifier, slot_keys
from tests.support.waiting import wait_until

SOON = 0.05


@pytest.fixture
def jobs(client: RmqClient, make_topic: MakeTopic) -> Topic:
    return client.producer(make_topic(TopicType.PRIORITY, max_retries=0, slots=2, lease=timedelta(seconds=1))).topic


def let_die(client: RmqClient, topic: Topic, *contents: str) -> None:
    client.producer(topic).send_many([PriorityMessage(content, 1) for content in contents])
    with client.consumer(topic) as consumer:
        left = len(contents)
        while left:
            for delivery in consumer.poll(timeout=5):
                assert delivery.nack(error="no photo")
                left -= 1


def test_who_fails_is_buried_or_loses_its_lease_is_told_with_its_reason(client: RmqClient, jobs: Topic) -> None:
    told = list[DeadMessage]()
    with client.dead(jobs).on_dead(told.extend, every_s=SOON):
        let_die(client, jobs, "failed")
        client.producer(jobs).send(PriorityMessage("expired", 1))
        with client.consumer(jobs) as consumer:
            assert [delivery.text for delivery in consumer.poll(timeout=5)] == ["expired"]
        with client.consumer(jobs) as consumer:  # whose claims find the lease that has run out
            wait_until(lambda: consumer.poll() == [] and len(told) == 2, 20)
    assert {each.text: (each.error_type, each.error_message) for each in told} == {
        "failed": ("", "no photo"),
        "expired": ("LeaseExpired", "delivery 1 was neither acked nor nacked within its lease"),
    }


def test_of_several_tellers_of_a_name_one_tells_and_another_one_goes_on(client: RmqClient, jobs: Topic) -> None:
    first, second = list[DeadMessage](), list[DeadMessage]()
    dead = client.dead(jobs)
    one = dead.on_dead(first.extend, every_s=SOON)
    let_die(client, jobs, "a", "b")
    wait_until(lambda: len(first) == 2)
    two = dead.on_dead(second.extend, every_s=SOON)
    told = lambda: [each.text for each in first + second]  # noqa: E731
    for content in "cdefghij":
        let_die(client, jobs, content)
        wait_until(lambda content=content: content in told())
    one.close()
    let_die(client, jobs, "k")
    wait_until(lambda: "k" in told())
    two.close()
    assert sorted(set(told())) == list("abcdefghijk")
    assert len(told()) < 15, "on a busy machine a turn may end while its notices are told; without turns it were 19"
    assert second[-1].text == "k"


def test_what_fails_is_told_again_until_it_succeeds_and_holds_up_no_other_slot(client: RmqClient, jobs: Topic) -> None:
    told, tries = list[str](), list[str]()

    def tell(dead: list[DeadMessage]) -> None:
        tries.extend(each.text for each in dead)
        if dead[0].slot == 0 and tries.count(dead[0].text) < 3:
            raise OSError("the pager is off")
        told.extend(each.text for each in dead)

    contents = [f"job:{number}" for number in range(8)]
    with client.dead(jobs).on_dead(tell, every_s=SOON) as notices:
        let_die(client, jobs, *contents)
        wait_until(lambda: sorted(told) == contents)
        wait_until(lambda: notices.failures == 0)


def test_a_slow_function_holds_up_no_handler(client: RmqClient, jobs: Topic) -> None:
    called, free = threading.Event(), threading.Event()

    def tell(dead: list[DeadMessage]) -> None:
        called.set()
        assert free.wait(60)

    with client.dead(jobs).on_dead(tell, every_s=SOON):
        let_die(client, jobs, "a")
        assert called.wait(60)
        let_die(client, jobs, "b", "c")  # handlers go on meanwhile
        assert client.dead(jobs).count() == 3
        free.set()


def test_it_ends_with_its_client(redis_url: str, client: RmqClient, jobs: Topic) -> None:
    told = list[DeadMessage]()
    with RmqClient(redis_url) as other:
        other.dead(jobs).on_dead(told.extend, every_s=SOON)
    names = {thread.name for thread in threading.enumerate()}
    assert f"rmq-dead-{jobs.name}" not in names
    let_die(client, jobs, "after")
    assert told == []


def test_a_group_of_a_stream(client: RmqClient, make_topic: MakeTopic) -> None:
    topic = make_topic(TopicType.STREAM, checked=False, max_retries=0)
    told = list[DeadMessage]()
    with client.consumer(topic, group="billing", start="all") as consumer:
        with client.stream(topic).dead("billing").on_dead(told.extend, every_s=SOON):
            client.producer(topic).send(StreamMessage("page:1"))
            assert [delivery.bury("no such page") for delivery in consumer.poll(timeout=5)] == [True]
            wait_until(lambda: len(told) == 1)
    assert (told[0].text, told[0].error_message) == ("page:1", "no such page")


def test_asyncio_awaits_an_async_function_and_calls_others_in_threads(
    redis_url: str, client: RmqClient, jobs: Topic
) -> None:
    awaited, threads = list[str](), list[str]()

    async def tell(dead: list[DeadMessage]) -> None:
        await asyncio.sleep(0)
        awaited.extend(each.text for each in dead)

    def call(dead: list[DeadMessage]) -> None:
        threads.append(threading.current_thread().name)

    async def run() -> None:
        async with aio.RmqClient(redis_url) as other:
            dead = await other.dead(jobs)
            async with await dead.on_dead(tell, name="a", every_s=SOON) as notices:
                await dead.on_dead(call, name="b", every_s=SOON)
                await asyncio.to_thread(let_die, client, jobs, "job:1")
                while not awaited or not threads:
                    await asyncio.sleep(0.01)
                assert notices.failures == 0

    asyncio.run(asyncio.wait_for(run(), 60))
    assert awaited == ["job:1"]
    assert threads[0] != threading.main_thread().name


@pytest.mark.parametrize(
    ("options", "message"),
    [({"name": "a b"}, "must be 1 to 64"), ({"every_s": 0}, "every_s"), ({"tell": asyncio.sleep}, "async")],
)
def test_wrong_options_are_refused(client: RmqClient, jobs: Topic, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        client.dead(jobs).on_dead(**{"tell": print, **options})


class Receiver:
    """A real HTTP server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.status = 204
        self.posts = list[tuple[Message, bytes]]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.headers, content))
                self.send_response(receiver.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/dead?token=secret"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_a_webhook_posts_signed_json(client: RmqClient, jobs: Topic, receiver: Receiver) -> None:
    hook = Webhook(receiver.url, secret=b"s", headers={"Authorization": "Bearer t"})
    with client.dead(jobs).on_dead(hook, every_s=SOON):
        let_die(client, jobs, "job:1")
        wait_until(lambda: len(receiver.posts) == 1)
    headers, content = receiver.posts[0]
    signed = headers["X-RMQ-Timestamp"].encode() + b"." + content
    assert headers["X-RMQ-Signature"] == "sha256=" + hmac.new(b"s", signed, hashlib.sha256).hexdigest()
    assert abs(int(headers["X-RMQ-Timestamp"]) - time.time()) < 600
    assert headers["Authorization"] == "Bearer t"
    posted = json.loads(content)
    [dead] = posted["dead"]
    assert (posted["topic"], dead["content"], dead["error_message"]) == (jobs.name, "job:1", "no photo")
    assert "body" not in dead


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_does_not_succeed_is_told_again(
    client: RmqClient, jobs: Topic, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    with client.dead(jobs).on_dead(Webhook(receiver.url), every_s=SOON) as notices:
        let_die(client, jobs, "job:1")
        wait_until(lambda: notices.failures > 0)
        receiver.status = 200
        wait_until(lambda: notices.failures == 0)
    assert len({content for _, content in receiver.posts}) == 1


def test_a_webhook_says_what_went_wrong_without_its_secrets(receiver: Receiver) -> None:
    hook = Webhook(receiver.url)
    receiver.status = 500
    with pytest.raises(WebhookError, match=r"^webhook http://127.0.0.1 returned status 500$"):
        hook([DeadMessage("t", 0, b"\xff", None, 1, "E", "m", 1, 1, 1)])
    assert json.loads(receiver.posts[0][1])["dead"][0]["content_base64"] == "/w=="
    with pytest.raises(WebhookError, match=r"^cannot post to webhook http://127.0.0.1: "):
        Webhook("http://127.0.0.1:1/?token=secret")([DeadMessage("t", 0, b"a", None, 1, "E", "m", 1, 1, 1)])


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/", "http://", "http://host:70000/", "nonsense", ""])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidValueError, match="webhook"):
        Webhook(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/s3cret token",
        "http://host/?t=s3cret\n",
        "http://host/s3cr\xe9t",
        "http://u:s3cret@host/",
        "http://s3cret@host/",
    ],
)
def test_an_address_that_cannot_be_posted_to_is_refused_without_its_secrets(url: str) -> None:
    """`http.client` would name a part of the address in its error, and look up the password as a host."""
    with pytest.raises(InvalidValueError, match="webhook URL") as refused:
        Webhook(url)
    assert "s3cr" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("Authorization", "Bearer s3cret\n"), ("Token", "s3cret\u20ac"), ("s3cret:", "1"), ("s3 cret", "1")],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(name: str, value: str) -> None:
    with pytest.raises(InvalidValueError, match="webhook header") as refused:
        Webhook("http://host/", headers={name: value})
    assert value not in str(refused.value)


def test_a_webhook_does_not_repeat_what_the_library_below_says(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("s3cret")

    hook = Webhook(receiver.url)
    monkeypatch.setattr("urllib.request.OpenerDirector.open", fail)
    with pytest.raises(WebhookError, match=r"^cannot post to webhook http://127.0.0.1: ValueError$"):
        hook([DeadMessage("t", 0, b"a", None, 1, "E", "m", 1, 1, 1)])


def test_the_pause_after_failures_grows_to_a_bound() -> None:
    assert DeadNotifier.pause_s(5.0, 0) == 5.0
    assert DeadNotifier.pause_s(5.0, 1) == 10.0
    assert DeadNotifier.pause_s(5.0, 1_000) == 60.0
    assert DeadNotifier.pause_s(600.0, 3) == 600.0


def test_a_function_that_exits_is_called_again(client: RmqClient, jobs: Topic) -> None:
    """`SystemExit` ended the thread without a line in the log."""
    told: list[DeadMessage] = []

    def tell(dead: list[DeadMessage]) -> None:
        told.extend(dead)
        if len(told) == 1:
            raise SystemExit(1)

    with client.dead(jobs).on_dead(tell, every_s=SOON):
        let_die(client, jobs, "job:1")
        wait_until(lambda: len(told) == 2)
    assert [each.text for each in told] == ["job:1", "job:1"]


def test_an_async_function_that_exits_is_called_again_too(redis_url: str, client: RmqClient, jobs: Topic) -> None:
    told: list[DeadMessage] = []

    async def tell(dead: list[DeadMessage]) -> None:
        told.extend(dead)
        if len(told) == 1:
            raise SystemExit(1)

    async def main() -> None:
        async with aio.RmqClient(redis_url) as loop_client:
            dead = await loop_client.dead(jobs)
            async with await dead.on_dead(tell, every_s=SOON):
                await asyncio.to_thread(let_die, client, jobs, "job:1")
                while len(told) < 2:
                    await asyncio.sleep(SOON)

    asyncio.run(main())
    assert [each.text for each in told] == ["job:1", "job:1"]


def test_an_async_function_may_end_it(
    redis_url: str, client: RmqClient, jobs: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for its own end."""
    monkeypatch.setattr("rmq._admin.notices.PATIENCE_S", 3_600.0)

    async def main() -> None:
        ended = asyncio.Event()

        async def tell(dead: list[DeadMessage]) -> None:
            await notices.close()
            ended.set()

        async with aio.RmqClient(redis_url) as loop_client:
            dead = await loop_client.dead(jobs)
            notices = await dead.on_dead(tell, every_s=SOON)
            await asyncio.to_thread(let_die, client, jobs, "job:1")
            await asyncio.wait_for(ended.wait(), 30)

    asyncio.run(main())


def test_a_slot_that_cannot_be_read_hides_the_dead_of_no_other(
    client: RmqClient, redis_client: redis.Redis, make_topic: MakeTopic
) -> None:
    jobs = client.producer(make_topic(TopicType.PRIORITY, checked=False, max_retries=0, slots=16)).topic
    told = list[DeadMessage]()
    with client.dead(jobs).on_dead(told.extend, every_s=SOON):
        redis_client.set(slot_keys(jobs.name, 3).dead, "of another program")
        contents = [text for text in map(str, range(100)) if jobs.slot_of(text.encode()) != 3]
        let_die(client, jobs, *contents)
        wait_until(lambda: len(told) == len(contents), 60)
    redis_client.delete(slot_keys(jobs.name, 3).dead)
