"""Takes the pictures in docs/guide/dashboard/: a small shop with workers at work, in a headless Chromium.

`make dashboard-pictures`, or `python -m docs_site.dashboard_pictures`; about 30 seconds. Needs chromium on the PATH.
"""

from __future__ import annotations

import io
import math
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.support.servers import standalone
from rmq import (
    Collect,
    ImmediateRetry,
    Merge,
    Minute,
    PriorityMessage,
    RangeMergeMessage,
    RmqClient,
    Schedule,
    Sliding,
    StreamMessage,
    Topic,
    TopicType,
)
from rmq.dashboard.app import make_app

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "guide" / "dashboard"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
PRICES = Topic("price-image", TopicType.PRIORITY, slots=64, max_retries=0, retry=ImmediateRetry())
VIEWS = Topic("page-view", TopicType.RANGE_MERGE, slots=8)
EVENTS = Topic("events", TopicType.STREAM, slots=2)
CARTS = Topic("carts", TopicType.RANGE_MERGE, slots=4, merge=Merge(Collect(), window=Sliding("10m", max_wait="1h")))


@contextmanager
def serving(client: RmqClient) -> Iterator[str]:
    """Serve the dashboard in a thread; give its address."""
    server = uvicorn.Server(uvicorn.Config(make_app(client), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def yesterday(client: RmqClient) -> None:
    """Write a day of figures, as a recorder would have."""
    draw, history, now = random.Random(7), client.history(), time.time_ns() // 60_000_000_000  # noqa: S311
    sent = done = failed = 0
    for age in range(400, 0, -1):
        wave = 1 + math.sin(age / 45)
        sent += int(9_000 * wave) + draw.randint(0, 900)
        done += int(9_000 * (1 + math.sin((age + 6) / 45))) + draw.randint(0, 900)
        failed += draw.randint(0, 90)
        late_ms = max(0, int(20_000 * math.sin(age / 45 + 0.6)))
        sizes = (int(3_000 * wave) + draw.randint(0, 250), 40, late_ms, draw.randint(20, 90), draw.randint(0, 30))
        for name in (None, PRICES.name):
            history.append(name, Minute(now - age, *sizes, 40 - age // 12, sent, sent // 3, done, failed, 0))


def shop(client: RmqClient) -> None:
    """Fill the topics, and have a few messages die."""
    producer = client.producer(PRICES)

    @client.listener(PRICES, threads=2)
    def draw(delivery: Any) -> None:
        time.sleep(0.02)
        if delivery.text.startswith("item:9"):
            raise TimeoutError("no answer from shop 9 within 5 s")

    @client.listener(EVENTS, group="billing", threads=2, start="all")
    def bill(delivery: Any) -> None:
        del delivery
        time.sleep(1.5)

    producer.send_many(PriorityMessage(f"item:9{i:03}", 5_000, body=b'{"shop": 9}') for i in range(30))
    client.start()
    producer.send_many(
        PriorityMessage(f"item:{i % 60}-{i}", 100 + i % 9, body=f'{{"item": {i}}}') for i in range(4_000)
    )
    client.producer(VIEWS).send_many(RangeMergeMessage(f"page:{i}", time_range_ms=60_000 + 50 * i) for i in range(700))
    for round_ in range(3):
        client.producer(CARTS).send_many(
            RangeMergeMessage(f"customer:{i}", body=f"+{1 + i % 3} item:{7 * i + round_}") for i in range(round_, 12)
        )
        time.sleep(1)
    stream = client.producer(EVENTS)
    client.stream(stream.topic).add_group("mail", "all")
    stream.send_many(StreamMessage(f"order {i}") for i in range(90))
    client.schedules.put(Schedule("night-prices", PRICES, "all", cron="30 2 * * *", tz="Europe/Berlin", priority=9))
    client.schedules.put(Schedule("report", VIEWS, "report:{scheduled}", every="1h", catch_up=True))
    client.schedules.put(Schedule("refresh", VIEWS, "page:home", every="2s"))
    control = client.control(PRICES, actor="ada@dashboard")
    control.pause([11, 12])
    control.promote(resting(client, 3))
    client.control(PRICES, actor="bob@host-3").cancel(resting(client, 4))


def resting(client: RmqClient, index: int) -> bytes:
    """Return a message of a paused slot: it stays where it is."""
    return client.inspect(PRICES).peek("store", 10, [11])[index].content


PICTURES = (
    ("overview", "/", 1_280, "light"),
    ("overview-dark", "/", 1_280, "dark"),
    ("overview-phone", "/", 360, "light"),
    ("topic", "/topic/price-image", 1_280, "light"),
    ("slot", "/topic/price-image/slot/11", 1_280, "light"),
    ("stream", "/topic/events", 1_280, "dark"),
    ("group", "/topic/events/group/billing", 1_280, "light"),
    ("entries", "/topic/events/entries?group=billing", 1_280, "light"),
    ("slots", "/topic/price-image?tab=slots", 1_280, "light"),
    ("workers", "/workers", 1_280, "light"),
    ("worker", "/worker/{worker}", 1_280, "light"),
    ("find", "/find?q=e", 1_280, "light"),
    ("schedules", "/schedules", 1_280, "light"),
    ("search", "/search?topic=price-image&pattern=item:5*", 1_280, "light"),
    ("merging", "/search?topic=carts", 1_280, "light"),
    ("message", "/message?topic=price-image&content={resting}", 1_280, "light"),
    ("queued", "/search?topic=price-image&place=store", 1_280, "light"),
    ("dead-topics", "/dead", 1_280, "light"),
    ("dead", "/dead?topic=price-image", 1_280, "light"),
    ("dead-phone", "/dead?topic=price-image", 360, "dark"),
    ("audit", "/audit?topic=price-image", 1_280, "light"),
)
"""Name of the file, page, width in pixels, colours."""
MOST_BYTES = 80_000


def keep(name: str, picture: bytes) -> None:
    """Write a picture with as many colours as fit into its bound: at most 256, at least 64.

    Raises:
        ValueError: It is too large for a page of the documentation.
    """
    path = FOLDER / f"{name}.png"
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colours in (256, 128, 64):
        image.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            break
    else:
        raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes, more than {MOST_BYTES:,}")


def main() -> None:
    """Take all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with standalone() as servers, RmqClient(servers.url) as client, serving(client) as address:
        client.producer(PRICES)
        yesterday(client)
        shop(client)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            warm = browser.new_page(base_url=address)
            for _ in range(30):  # rates need readings some seconds apart
                warm.goto("/")
                time.sleep(2.2)
                if "no reading to compare with" not in warm.content():
                    break
            for name, path, width, scheme in PICTURES:
                page = browser.new_page(base_url=address, viewport={"width": width, "height": 800}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
                page.goto(path.format(resting=resting(client, 5).decode(), worker=client.workers()[0].name))
                keep(name, page.screenshot(full_page=name in ("overview", "topic", "worker")))
                page.close()
            browser.close()
        client.stop(1.0)


if __name__ == "__main__":
    main()
