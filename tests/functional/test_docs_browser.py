"""The documentation site in a real browser: the main pages, light and dark, on a phone and on a screen; the search."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from docs_site.__main__ import build
from tests.support.browser import LIMIT_MS, MARKS, Watched, violations
from tests.support.unmeasured import unmeasured

pytestmark = [*MARKS, pytest.mark.slow]

PAGES = (
    "index", "tutorial/2-merge", "tutorial/6-workers", "guide/topics", "guide/merging", "guide/comparison",
    "coming-from/celery", "reference/index", "reference/topics", "internals/semantics", "internals/architecture",
    "operate/ownership", "guide/demo",
)  # fmt: skip


ASK = """async ([script, questions]) => {
    const index = await (await fetch("/search.json")).json()
    const worker = new Worker(script)
    const ask = data => new Promise(answer => {
        worker.onmessage = said => answer(said.data)
        worker.postMessage(data)
    })
    await ask({type: 0, data: index})
    const filter = {input: {type: "operator", data: {operator: "and", operands: []}}, aggregation: {input: []}}
    const found = {}
    for (const input of questions) {
        const [first] = (await ask({type: 2, data: {input, filter}})).data.items
        found[input] = first ? index.items[first.id].location.split(".html")[0] : "nothing"
    }
    worker.terminate()
    return found
}"""
"""Ask the site's own search, which is a worker, as its page does."""

QUESTIONS = {
    "rate limit": "guide/flow",
    "debounce": "guide/merging",
    "dead letters": "guide/retries",
    "retry": "guide/retries",
    "backoff": "guide/retries",
    "priority": "guide/priorities",
    "delay": "guide/delayed",
    "schedule": "guide/recurring",
    "cron": "guide/recurring",
    "periodic": "guide/recurring",
    "idempotent": "guide/promises",
    "at least once": "guide/promises",
    "deduplication": "guide/merging",
    "install": "tutorial/index",
    "worker": "operate/cli",
    "django": "guide/django",
    "fastapi": "guide/fastapi",
    "flask": "guide/flask",
    "celery": "coming-from/celery",
    "sentinel": "operate/topologies",
    "cluster": "operate/topologies",
    "zookeeper": "operate/ownership",
    "docker": "operate/compose",
    "kubernetes": "operate/deployment",
    "systemd": "operate/deployment",
    "health": "operate/deployment",
    "prometheus": "operate/metrics",
    "dashboard": "guide/dashboard",
    "unit test": "guide/testing",
    "asyncio": "guide/asyncio",
    "spark": "guide/spark",
    "batch": "guide/columns",
    "timeout": "guide/flow",
    "pydantic": "guide/payloads",
    "encryption": "guide/payloads",
    "ACL permissions": "operate/operations",
    "memory": "operate/operations",
    "graceful shutdown": "operate/cli",
    "exactly once": "guide/promises",
    "lease": "glossary",
    "consumer groups": "guide/streams",
    "cancel a message": "operate/control",
    "pause": "operate/control",
    "webhook": "operate/notices",
    "sum": "guide/merging",
    "durability": "operate/topologies",
    "maxmemory": "operate/operations",
    "tls": "operate/operations",
    "upgrade": "operate/versions",
    "compare": "guide/comparison",
    "kafka": "coming-from/spark-kafka",
    "audit": "operate/control",
    "autoscaling": "operate/autoscaling",
}
"""What readers look for -> the page that explains it, which the search has to name first."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly from the repository as it stands."""
    with unmeasured():
        return build(tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def opened(browser: Browser, address: str, width: int, scheme: Any) -> Watched:
    size: Any = {"width": width, "height": 800}
    return Watched(browser.new_context(viewport=size, color_scheme=scheme, base_url=address), address)


def check(page: Page, path: str, width: int, scheme: str) -> None:
    answer = page.goto(f"/{path}.html")
    assert answer is not None
    assert answer.status == 200, path
    assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"
    assert violations(page) == [], path
    ground: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light"), f"{path}: {ground}"
    hidden = page.evaluate("[...document.images].filter(each => each.complete && !each.naturalWidth).length")
    assert hidden == 0, f"{path} has pictures that do not load"


def test_diagrams_are_pictures_that_can_be_read_on_a_phone(browser: Browser, address: str) -> None:
    watched = opened(browser, address, 360, "light")
    watched.page.goto("/internals/semantics.html")
    shown = watched.page.evaluate(
        "[...document.querySelectorAll('article img[src$=\".svg\"]')].map(each => [each.width, each.naturalWidth])"
    )
    assert len(shown) == 3
    assert all(width == natural > 400 for width, natural in shown), shown
    box = watched.page.locator("article p:has(> img)").first
    expect(box).to_have_attribute("tabindex", "0")
    box.focus()
    watched.page.keyboard.press("ArrowRight")
    watched.page.wait_for_function("box => box.scrollLeft > 0", arg=box.element_handle())
    watched.page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1_440, "light")])  # a width has no colours of its own
def test_the_main_pages(browser: Browser, address: str, width: int, scheme: str) -> None:
    watched = opened(browser, address, width, scheme)
    for path in PAGES:
        check(watched.page, path, width, scheme)
    assert (watched.complaints, watched.abroad) == ([], [])
    watched.page.context.close()


def test_the_search_finds_a_public_name(browser: Browser, address: str) -> None:
    watched = opened(browser, address, 1_440, "light")
    page = watched.page
    page.goto("/index.html")
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("ExponentialRetry")
    found = page.locator("a[href*='reference/topics.html'][href*='#rmq.ExponentialRetry']").first
    expect(found).to_be_visible(timeout=LIMIT_MS)
    assert (watched.complaints, watched.abroad) == ([], [])
    page.context.close()


def test_the_search_finds_the_page_that_explains_first(browser: Browser, address: str, site: Path) -> None:
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.js")
    watched = opened(browser, address, 1_440, "light")
    watched.page.goto("/index.html")
    asked = ["/" + worker.relative_to(site).as_posix(), list(QUESTIONS)]
    found: dict[str, str] = watched.page.evaluate(ASK, asked)
    assert {question: page for question, page in found.items() if page != QUESTIONS[question]} == {}
    assert len(QUESTIONS) >= 30
    watched.page.context.close()


def test_programs_find_all_pages(site: Path) -> None:
    index = (site / "llms.txt").read_text("utf-8")
    linked = [line.rpartition("](")[2].rstrip(")") for line in index.splitlines() if line.startswith("- [")]
    assert 50 < len(linked) < 120
    assert [name for name in linked if not (site / name).is_file()] == []
    whole = (site / "llms-full.txt").read_text("utf-8")
    assert 'ORDERS = Topic("orders", TopicType.PRIORITY)' in whole
    assert "--8<--" not in whole
