"""How long the dashboard's pages take, and how much of Redis' time they cost, where there is much to show.

One topic of 1,024 slots with a million dead messages of several errors and a backlog, and 100 workers that report.
Three browsers ask for the overview every three seconds, as an open page does, while each page is asked for 20 times.
`python -m benchmarks.dashboard`; writes `benchmarks/results/dashboard.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from benchmarks.support import harness
from benchmarks.support.servers import Servers, standalone
from rmq import History, Minute, PriorityMessage, RmqClient, Topic, TopicType
from rmq._admin.history import MINUTES
from rmq._broker.keys import slot_keys
from rmq.dashboard.app import make_app

SLOTS, DEAD, WORKERS, BACKLOG = 1_024, 1_000_000, 100, 100_000
ASKED = 20
ERRORS = ("ValueError", "TimeoutError", "KeyError", "ConnectionError")
TOPIC = Topic("price-image", TopicType.PRIORITY, slots=SLOTS, max_dead=2 * DEAD)


def seed(servers: Servers, client: RmqClient, dead: int) -> None:
    """Write what is to be shown: the dead directly, as the scripts would have left them."""
    producer = client.producer(TOPIC)
    producer.send_many(PriorityMessage(f"item:{i}", 100, body=b"x" * 40) for i in range(BACKLOG))
    plain = servers.connect()
    now_ms = time.time_ns() // 1_000_000
    per_slot = dead // SLOTS
    for slot in range(SLOTS):
        keys = slot_keys(TOPIC.name, slot)
        contents = [f"dead:{slot}:{i}" for i in range(per_slot)]
        with plain.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.dead, {content: now_ms - i * 100 for i, content in enumerate(contents)})
            times = {"attempts": 17, "first_ms": now_ms, "last_ms": now_ms}
            reasons = {
                content: json.dumps({"type": ERRORS[i % 4], "message": f"no answer from shop {i}", **times})
                for i, content in enumerate(contents)
            }
            pipe.hset(keys.reason, mapping=reasons)
            pipe.hincrby(keys.meta, "accepted", per_slot)
            pipe.hincrby(keys.meta, "buried", per_slot)
            pipe.execute()
    rings = History(client._registered(TOPIC)[0])
    minute = now_ms // 60_000 - MINUTES
    for offset in range(MINUTES):
        for name in (None, TOPIC.name):
            rings.append(
                name, Minute(minute + offset, BACKLOG, BACKLOG, 5_000, 100, 50, dead, offset * 900, 0, offset * 850)
            )


@contextmanager
def reporting(servers: Servers, number: int) -> Iterator[None]:
    """Run so many workers that report, each a client of its own with one listener thread."""
    small = Topic("reporting", TopicType.PRIORITY)
    clients = [RmqClient(servers.url) for _ in range(number)]
    for client in clients:

        @client.listener(small)
        def work(delivery: object) -> None:
            del delivery

        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stop(0)
            client.close()


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


def spent_us(servers: Servers) -> int:
    """Return the time that Redis has spent in the commands that the dashboard sends, microseconds."""
    stats: dict[str, Any] = servers.connect().info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "hkeys", "hget", "lrange"))


def measure(address: str) -> dict[str, dict[str, float]]:
    """Ask for each page; return its times, ms, and its size, kB."""
    name = TOPIC.name
    paths = [
        "/", "/?range=24h", f"/topic/{name}", f"/topic/{name}?heat=owner", f"/topic/{name}/slot/7", "/workers",
        f"/search?topic={name}&pattern=item:77*", f"/message?topic={name}&content=item:77", "/dead",
        f"/dead?topic={name}&error=KeyError", f"/dead?topic={name}&pattern=dead:1000:*", f"/audit?topic={name}",
    ]  # fmt: skip
    found: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as browser:
        for path in paths:
            times: list[float] = []
            size = 0
            for _ in range(ASKED):
                began = time.perf_counter()
                page = browser.get(path)
                times.append((time.perf_counter() - began) * 1_000)
                page.raise_for_status()
                size = len(page.content)
                time.sleep(0.1)
            found[path] = {
                "first_ms": round(times[0], 1), "median_ms": round(statistics.median(times), 1),
                "most_ms": round(max(times), 1), "kB": round(size / 1_000, 1),
            }  # fmt: skip
            harness.say(f"{path:48} {found[path]}")
    return found


def looking(address: str, seconds: float, browsers: int) -> None:
    """Have open pages ask for fresh figures, as their script does."""

    def look(path: str) -> None:
        until = time.monotonic() + seconds
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as browser:
            while time.monotonic() < until:
                browser.get(path)
                time.sleep(3)

    paths = ["/", f"/topic/{TOPIC.name}", "/workers"]
    threads = [threading.Thread(target=look, args=(paths[number % 3],)) for number in range(browsers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dead", type=int, default=DEAD)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the open pages are watched")
    parser.add_argument("--quick", action="store_true", help="a tenth of the dead, and ten seconds")
    options = parser.parse_args()
    if options.quick:
        options.dead, options.seconds = DEAD // 10, 10.0
    with standalone() as servers, RmqClient(servers.url) as client:
        seed(servers, client, options.dead)
        with reporting(servers, options.workers):
            time.sleep(7)  # each has reported
            with serving(client) as address:
                pages = measure(address)
        with serving(client) as address:  # the workers' own calls would count as reading
            time.sleep(3)
            before_us, began = spent_us(servers), time.monotonic()
            looking(address, options.seconds, 9)
            share = (spent_us(servers) - before_us) / 1e6 / (time.monotonic() - began)
        harness.say(f"nine open pages take {share:.2%} of Redis' time")
    document = {
        "slots": SLOTS, "dead": options.dead, "workers": options.workers, "backlog": BACKLOG, "open_pages": 9,
        "watched_s": options.seconds, "share_of_redis": round(share, 5), "pages": pages, "machine": harness.machine(),
    }  # fmt: skip
    path = harness.results_folder(first_look=options.quick) / "dashboard.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    slowest = max(page["median_ms"] for page in pages.values())
    harness.say(f"slowest median {slowest} ms; wrote {path.name}")


if __name__ == "__main__":
    main()
