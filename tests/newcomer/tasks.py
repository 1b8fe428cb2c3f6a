"""The tasks, each with nothing but what its page says."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.newcomer.pages import Page
from tests.newcomer.workshop import LIMIT_S, Workshop, free_port
from tests.support.waiting import wait_until

Work = Callable[[Workshop, Callable[[str], Page]], None]


@dataclass(frozen=True)
class Task:
    """A task, the page that says how, and how it is done."""

    name: str
    page: str
    work: Work

    def do(self, shop: Workshop, root: Path) -> None:
        self.work(shop, lambda name: Page(root, name))


def readme(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("../README")
    shop.type(page.command("pip install '."))
    shop.save("shop.py", page.program("client.listener"))
    shop.type(page.command("export RMQ_URL"))
    with shop.running(page.command("rmq worker")) as log:
        assert shop.type(page.command("python shop.py")) == page.printed("second terminal") == "1 new, 39 merged\n"
        wait_until(lambda: page.printed("Two seconds later") in log.read_text("utf-8"), LIMIT_S)
        assert "Nothing needs attention" in shop.type("rmq status")


def _begin(shop: Workshop, pages: Callable[[str], Page]) -> None:
    shop.type(pages("tutorial/index").command("pip install 'rmq"))


def _program(page: str, containing: str, file: str, after: str) -> Work:
    """Save a program of a page, run it, and compare what it prints with the page."""

    def work(shop: Workshop, pages: Callable[[str], Page]) -> None:
        _begin(shop, pages)
        shop.save(file, pages(page).program(containing))
        said = shop.type(f"python {file}")
        assert said == pages(page).printed(after), said

    return work


def retry_policy(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/retries")
    _begin(shop, pages)
    shop.save("retry_policy.py", page.program("ExponentialRetry"))
    shop.type(page.command("export RMQ_URL"))
    said = shop.type(page.command("python retry_policy.py"))
    assert said == page.printed("It prints:"), said


def dead_letters(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/retries")
    retry_policy(shop, pages)
    listed = shop.type(page.command("rmq dead list"))
    for words in ("mail:nobody", "ValueError", "mail:bob", "TimeoutError"):
        assert words in listed, listed
        assert words in page.printed("The output is:")
    redriven = shop.type(page.command("rmq dead redrive"))
    assert redriven.strip() == page.printed("The output is:").splitlines()[-1]
    assert "mail:bob" not in shop.type(page.command("rmq dead list"))


def try_a_handler(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/testing")
    shop.type([each for each in page.commands() if each.startswith("pip install")][-1])
    for name in ("shop.py", "tests/test_shop.py"):
        page.linked(f"examples/tested_shop/{name}")
        shop.save(Path(name).name, page.linked(f"examples/tested_shop/{name}"))
    said = shop.type(page.command("python -m pytest"))
    assert " passed" in said


def fastapi(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/fastapi")
    shop.type(page.command("pip install 'rmq[fastapi,embedded]'"))
    shop.save("fastapi_shop.py", page.linked("examples/web/fastapi_shop.py"))
    shop.type(page.command("export RMQ_URL"))
    port = free_port()
    with shop.running(page.command("uvicorn"), f" --port {port}"):
        assert page.command("curl -X POST") == "curl -X POST localhost:8000/items/mug"
        shop.get(f"http://127.0.0.1:{port}/items/mug", "merged", method="POST")
        assert page.command("curl localhost") == "curl localhost:8000/stats"
        shop.get(f"http://127.0.0.1:{port}/stats", '"drawn":1')


def django(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/django")
    shop.type(page.command("pip install 'rmq[django,embedded]'"))
    files = ("manage.py", *(f"shop/{name}.py" for name in ("settings", "models", "views", "rmq_handlers", "__init__")))
    for name in files:
        shop.save(name, page.linked(f"examples/django_shop/{name}"))
    shop.type(page.command("export RMQ_URL"))
    shop.type(page.command("python manage.py migrate"))
    port = free_port()
    with (
        shop.running(page.command("python manage.py runserver"), f" --noreload {port}"),
        shop.running(page.command("python manage.py rmq_worker")),
    ):
        assert page.command("curl") == "curl localhost:8000/items/mug/399"
        shop.get(f"http://localhost:{port}/items/mug/399", '"price": 399')
        until_drawn(shop.folder / "shop.sqlite3")


def until_drawn(database: Path) -> None:
    """Wait until the handler has drawn the price."""
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT COUNT(*) FROM shop_item WHERE drawn_price = 399"
        wait_until(lambda: connection.execute(query).fetchone() == (1,), LIMIT_S)


def dashboard(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("guide/dashboard")
    _begin(shop, pages)
    shop.type(page.command("pip install"))
    _some_messages(shop, pages)
    port = free_port()
    with shop.running(page.command("rmq dashboard"), f" --port {port}"):
        shop.get(f"http://127.0.0.1:{port}/", "price-pictures")


def metrics(shop: Workshop, pages: Callable[[str], Page]) -> None:
    page = pages("operate/metrics")
    _begin(shop, pages)
    shop.type(page.command("pip install"))
    _some_messages(shop, pages)
    assert 'rmq_backlog{topic="price-pictures"} 743.0' in shop.type(page.command("rmq metrics --once"))
    port = free_port()
    with shop.running(page.command("rmq metrics --port"), f" --port {port}"):
        shop.get(f"http://127.0.0.1:{port}/metrics", 'rmq_backlog{topic="price-pictures"} 743.0')


def _some_messages(shop: Workshop, pages: Callable[[str], Page]) -> None:
    """Do the sixth step of the tutorial as far as the sends: then there is something to see."""
    page = pages("tutorial/6-workers")
    shop.type(page.command("export RMQ_URL"))
    shop.save("worker.py", page.program("client.listener"))
    assert shop.type(page.command("python worker.py")) == "743 pictures to draw\n"


TASKS = (
    Task("README", "../README", readme),
    Task(
        "first message",
        "tutorial/1-first-message",
        _program("tutorial/1-first-message", "client.producer", "first_message.py", "It prints:"),
    ),
    Task("delayed message", "tutorial/4-delays", _program("tutorial/4-delays", "FixedTime", "delays.py", "It prints:")),
    Task(
        "debounce",
        "guide/recipes",
        _program("guide/recipes", "Sliding(quiet", "debounce_webhook.py", "## Debounce a webhook"),
    ),
    Task("retry policy", "guide/retries", retry_policy),
    Task("dead letters", "guide/retries", dead_letters),
    Task("test a handler", "guide/testing", try_a_handler),
    Task("FastAPI", "guide/fastapi", fastapi),
    Task("Django", "guide/django", django),
    Task("dashboard", "guide/dashboard", dashboard),
    Task("metrics", "operate/metrics", metrics),
)
