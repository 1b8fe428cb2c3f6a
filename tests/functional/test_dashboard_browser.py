"""The dashboard in a real browser: every page and action, light and dark, on a phone and on a screen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from rmq import Delivery, PriorityMessage, RangeMergeMessage, RmqClient, Topic, TopicType
from rmq.dashboard.queries import LONGEST_REST_S
from rmq.dashboard.security import Settings
from tests.support.browser import LIMIT_MS, MARKS, Open, Watched, press, said, violations
from tests.support.dashboard import served
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = MARKS

WIDTHS, SCHEMES = (360, 1_440), ("light", "dark")


def pages_of(shop: dict[str, Topic]) -> list[str]:
    name = shop["priority"].name
    return [
        "/", f"/topic/{name}", f"/topic/{name}?tab=slots", f"/search?topic={name}&place=store&sort=last",
        f"/search?topic={name}&place=retry", f"/topic/{name}?heat=owner&range=24h", f"/topic/{shop['merged'].name}",
        f"/topic/{shop['stream'].name}", f"/topic/{name}/slot/3", f"/topic/{shop['stream'].name}/group/billing",
        "/workers", f"/search?topic={name}&pattern=job:1*",
        f"/message?topic={name}&content=job:20", f"/message?topic={name}&content=bad:0", f"/dead?topic={name}",
        f"/dead?topic={shop['stream'].name}", f"/audit?topic={name}", f"/topic/{shop['sums'].name}",
        f"/topic/{shop['items'].name}/slot/0", f"/search?topic={shop['sums'].name}",
        f"/dead?topic={shop['items'].name}", f"/message?topic={shop['items'].name}&content=page",
        f"/message?topic={shop['sums'].name}&content=item:42", "/?filter=nothing",
        f"/topic/{shop['stream'].name}/entries", f"/topic/{shop['stream'].name}/entries?group=billing", "/dead",
        "/find?q=e", "/find?q=nix", "/find", "/search", "/schedules",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [*zip(WIDTHS, SCHEMES, strict=True)])  # a width has no colours
def test_every_page(open_page: Open, client: RmqClient, shop: dict[str, Topic], width: int, scheme: str) -> None:
    client.control(shop["priority"]).pause([1])

    @client.listener(shop["merged"])
    def work(delivery: object) -> None:
        del delivery

    client.start()
    try:
        wait_until(client.workers, 60)
        page = open_page("/", width, scheme)
        for path in pages_of(shop):
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} is wider than {width}"
            assert violations(page) == [], path
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(15, 20, 27)") == (scheme == "dark"), path
    finally:
        client.stop()
        client.control(shop["priority"]).resume()


@pytest.mark.parametrize("width", WIDTHS)
def test_pause_and_resume(open_page: Open, client: RmqClient, shop: dict[str, Topic], width: int) -> None:
    topic = shop["priority"]

    def paused() -> int:
        return sum(slot.paused for slot in client.inspect(topic).stats().slots)

    page = open_page(f"/topic/{topic.name}", width)
    press(page, "Pause topic")
    said(page, "paused 16 slots")
    assert paused() == 16
    press(page, "Resume topic")
    said(page, "resumed 16 slots")
    assert paused() == 0
    page.goto(f"/topic/{topic.name}?tab=slots")
    page.get_by_role("link", name="slot 5:").click()
    press(page, "Pause slot")
    said(page, "paused 1 slot")
    assert [slot.slot for slot in client.inspect(topic).stats().slots if slot.paused] == [5]
    press(page, "Resume slot")
    said(page, "resumed 1 slot")
    page.goto(f"/topic/{shop['stream'].name}")
    page.get_by_role("button", name="Pause group billing").click()
    said(page, "paused 1 slot")
    page.get_by_role("button", name="Resume group billing").click()
    said(page, "resumed 1 slot")


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_steering_one_message(open_page: Open, client: RmqClient, shop: dict[str, Topic], width: int) -> None:
    topic, timed = shop["priority"], shop["timed"]
    page = open_page("/schedules", width)
    page.get_by_label("Search everything").fill("job:50")
    page.get_by_label("Search everything").press("Enter")
    expect(page.get_by_text("In the backlog")).to_be_visible()
    page.get_by_label("Priority").fill("5")
    press(page, "Reprioritise")
    said(page, "reprioritise: done")
    found = client.inspect(topic).find("job:50").stored
    assert found is not None
    assert found.priority == 5
    press(page, "Promote (now)")
    said(page, "promote: done")
    promoted = client.inspect(topic).find("job:50").stored
    assert promoted is not None
    assert promoted.priority is not None
    assert promoted.priority >= 5
    press(page, "Cancel …")
    expect(page.get_by_text("Cancel job:50 in")).to_be_visible()
    page.get_by_role("link", name="Go back").click()
    assert not client.inspect(topic).find("job:50").gone
    press(page, "Cancel …")
    press(page, "Cancel message")
    said(page, "cancel: done")
    expect(page.get_by_text("Not found.")).to_be_visible()
    assert client.inspect(topic).find("job:50").gone
    page.goto(f"/message?topic={timed.name}&content=close:1")
    page.get_by_label("Due (UTC)").fill("2039-01-02T03:04:05")
    press(page, "Reschedule")
    said(page, "reschedule: done")
    moved = client.inspect(timed).find("close:1").stored
    assert moved is not None
    assert moved.due_ms == 2_177_550_245_000
    page.goto(f"/audit?topic={topic.name}")
    for action in ("cancel", "promote", "reprioritise"):
        expect(page.get_by_role("cell", name=action).first).to_be_visible()
    expect(page.get_by_text("somebody@dashboard").first).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_dead_letters(open_page: Open, client: RmqClient, shop: dict[str, Topic], width: int) -> None:
    topic = shop["priority"]

    def dead() -> int:
        return client.inspect(topic).stats().dead

    page = open_page(f"/dead?topic={topic.name}", width)
    expect(page.get_by_text("no such <picture>").first).to_be_visible()
    page.get_by_role("button", name="Redrive bad:").first.click()
    said(page, "redrive: sent again")
    assert dead() == 7
    page.get_by_role("button", name="Purge … bad:").first.click()
    press(page, "Purge")
    said(page, "purge: deleted")
    assert dead() == 6
    page.get_by_label("Error type").fill("KeyError")
    press(page, "Show")
    expect(page.get_by_text("No dead letters match.")).to_be_visible()
    page.get_by_role("link", name="ValueError").click()
    content = page.locator("tbody code.content").first.inner_text()
    page.get_by_label("Content, with").fill(content)
    press(page, "Show")
    press(page, "Redrive all that match …")
    expect(page.get_by_text(f"with error ValueError matching {content}")).to_be_visible()
    press(page, "Redrive")
    said(page, "started; see")
    wait_until(lambda: dead() == 5, 60)
    page.goto(f"/dead?topic={topic.name}")
    press(page, "Purge all that match …")
    page.get_by_label("Type the topic's name").fill("something else")
    press(page, "Purge")
    expect(page.get_by_text("The name does not match.")).to_be_visible()
    page.get_by_label("Type the topic's name").fill(topic.name)
    press(page, "Purge")
    said(page, "started; see")
    wait_until(lambda: dead() == 0, 60)
    page.goto(f"/topic/{topic.name}")
    said(page, "5 deleted")
    press(page, "Purge backlog …")
    page.get_by_label("Type the topic's name").fill(topic.name)
    press(page, "Purge")
    wait_until(lambda: client.inspect(topic).stats().backlog == 0, 60)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_question_before_a_purge(open_page: Open, shop: dict[str, Topic], scheme: str) -> None:
    page = open_page(f"/topic/{shop['priority'].name}", 360, scheme)
    press(page, "Purge backlog …")
    expect(page.get_by_text("Permanently delete the backlog")).to_be_visible()
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="Go back").click()
    expect(page.get_by_role("heading", name=shop["priority"].name)).to_be_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_list_of_one_state_and_what_is_selected(
    open_page: Open, client: RmqClient, shop: dict[str, Topic], width: int
) -> None:
    topic = shop["priority"]
    page = open_page(f"/topic/{topic.name}", width)
    page.get_by_role("link", name="Queued 60").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_label("Content, with").fill("job:2*")
    page.get_by_label("Order").select_option("content")
    press(page, "Show")
    expect(page.locator("tbody tr")).to_have_count(11)
    expect(page.locator("tbody tr").first).to_contain_text("job:2")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("job:20")
    page.get_by_label("Select job:20,").check()
    page.get_by_label("Select job:21,").check()
    press(page, "Cancel selected …")
    expect(page.get_by_text(f"Cancel 2 messages of topic {topic.name}?")).to_be_visible()
    assert violations(page) == []
    press(page, "Cancel")
    said(page, "cancel: 2 done")
    assert client.inspect(topic).find("job:20").gone
    assert not client.inspect(topic).find("job:22").gone
    expect(page.locator("tbody tr")).to_have_count(9)
    press(page, "Select all")
    press(page, "Promote selected …")
    expect(page.get_by_text(f"Make 9 messages of topic {topic.name} due now?")).to_be_visible()
    press(page, "Promote")
    said(page, "promote: 9 done")
    press(page, "Cancel all that match …")
    expect(
        page.get_by_text(f"Cancel 9 messages of topic {topic.name} matching job:2*, queued or waiting")
    ).to_be_visible()
    page.get_by_label("Type the topic's name").fill(topic.name)
    press(page, "Cancel")
    wait_until(lambda: client.inspect(topic).stats().backlog == 49, 60)
    page.goto(f"/search?topic={topic.name}&place=dead&sort=last")
    page.get_by_label("Select bad:").first.check()
    press(page, "Redrive selected …")
    press(page, "Redrive")
    said(page, "redrive: 1 sent again")


def test_searching(open_page: Open, shop: dict[str, Topic]) -> None:
    page = open_page("/search")
    page.get_by_label("Topic").select_option(shop["priority"].name)
    page.get_by_label("Content, with").fill("job:2?")
    page.get_by_label("Place").select_option("store")
    page.get_by_label("Content, with").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_role("link", name="job:27").click()
    expect(page.get_by_text("In the backlog")).to_be_visible()
    expect(page.get_by_role("region", name="Body")).to_have_text("b27")


def test_the_search_of_every_page_by_keyboard(open_page: Open, shop: dict[str, Topic]) -> None:
    topic = shop["priority"].name
    page = open_page("/workers", 360)

    def ask(text: str) -> None:
        page.wait_for_load_state()  # the script comes last
        page.keyboard.press("/")
        page.keyboard.type(text)
        page.keyboard.press("Enter")

    ask("billing")
    expect(page.get_by_role("heading", name=f"{shop['stream'].name} @ billing", exact=True)).to_be_visible()
    ask("job:20")
    expect(page.get_by_text("In the backlog")).to_be_visible()
    ask(topic)
    expect(page.get_by_role("heading", name=topic, exact=True)).to_be_visible()
    page.goto("/search")
    page.get_by_label("Content, with").press("/")
    expect(page.get_by_label("Content, with")).to_have_value("/")
    page.goto("/find?q=nothing-of-this-name")
    expect(page.get_by_text("Nothing found for nothing-of-this-name.")).to_be_visible()
    expect(page.get_by_text("no message has this content")).to_be_visible()
    answer = page.goto("/message")
    assert answer is not None
    assert answer.url.endswith("/find")


def test_an_address_holds_what_was_chosen(open_page: Open, shop: dict[str, Topic]) -> None:
    topic = shop["priority"].name
    page = open_page(f"/topic/{topic}?tab=slots")
    page.get_by_role("link", name="dead", exact=True).click()
    expect(page.get_by_role("link", name="dead", exact=True)).to_have_attribute("aria-current", "true")
    assert page.url.endswith(f"/topic/{topic}?tab=slots&heat=dead")
    page.goto(f"/topic/{topic}")
    page.get_by_role("link", name="Last 24 hours").click()
    expect(page.get_by_role("heading", name="Last 24 hours")).to_be_visible()
    assert page.url.endswith(f"/topic/{topic}?range=24h")
    page.goto("/?range=6h")
    page.get_by_role("link", name="Waiting", exact=True).click()
    page.get_by_label("Name contains").fill(topic.upper())
    page.get_by_label("Name contains").press("Enter")
    expect(page.locator("#topics tbody th")).to_have_text([topic])
    assert page.url.endswith(f"/?range=6h&sort=waiting&filter={topic.upper()}")
    expect(page.locator("th[aria-sort]")).to_have_text("Waiting")
    expect(page.get_by_role("heading", name="Last 6 hours")).to_be_visible()


def test_axis_labels_stand_beside_the_lines(open_page: Open, shop: dict[str, Topic]) -> None:
    page = open_page(f"/topic/{shop['merged'].name}", 360)
    boxes = [box for each in page.locator(".frame").all() if (box := each.locator(".axis").bounding_box())]
    plots = [box for each in page.locator(".frame").all() if (box := each.locator("svg").bounding_box())]
    assert len(boxes) == len(plots) == 5
    assert all(axis["x"] + axis["width"] <= plot["x"] for axis, plot in zip(boxes, plots, strict=True))
    expect(page.locator(".axis").first.locator("span").last).to_have_text("0")


@pytest.mark.slow
def test_workers_and_how_long_their_handlers_take(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    topic, held, goes_on = shop["priority"], "job:7", threading.Event()

    @client.listener(topic, threads=2)
    def work(delivery: Delivery) -> None:
        if delivery.text == held:
            goes_on.wait(120)

    client.start()
    try:

        def reported() -> bool:
            return any(
                each.running and each.times.count >= 50 for worker in client.workers() for each in worker.listeners
            )

        wait_until(reported, 60)
        page = open_page("/workers")
        cells = page.locator("tbody tr", has_text=topic.name).locator("td")
        expect(cells.nth(6)).to_contain_text(" ms")
        page.locator("#workers th a").first.click()
        expect(page.get_by_role("region", name="Running handlers")).to_contain_text(held)
        expect(page.locator(".tile", has_text="Handler time")).to_contain_text("p99")
        expect(page.locator(".rules dd").first).to_have_text("0-15")
        assert violations(page) == []
        page.set_viewport_size({"width": 360, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for path in ("/", f"/topic/{topic.name}"):
            page.goto(path)
            expect(page.locator(".tile", has_text="Handler time")).to_contain_text("p99", timeout=LIMIT_MS)
        page.goto(f"/topic/{topic.name}?tab=slots")
        expect(page.locator("#rows tbody tr")).to_have_count(16)
        expect(page.locator("#rows tbody td").first).to_have_text("shared")
        answer = page.request.get("/worker/nobody")
        assert answer.status == 404
        assert "Worker not found" in answer.text()
    finally:
        goes_on.set()
        client.stop()


@pytest.mark.slow
def test_a_group_of_a_stream(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    topic = shop["stream"]
    page = open_page(f"/topic/{topic.name}")
    expect(page.locator("#rows tbody td").first).to_have_text("5")
    page.get_by_role("link", name="billing", exact=True).click()
    cells = page.locator("#rows tbody td")
    expect(cells.nth(0)).to_have_text("none")
    expect(cells.nth(1)).to_have_text("5")
    expect(page.get_by_text("No worker listens for this group.")).to_be_visible()
    expect(page.locator("#tiles .tile", has_text="Oldest")).to_contain_text("age of the oldest unread")
    expect(page.locator(".chart", has_text="Lag")).to_contain_text("5")
    page.get_by_role("link", name="unread entries").click()
    expect(page.locator("tbody th")).to_have_text([f"event:{number}" for number in range(5)])
    page.get_by_role("link", name="All, newest first").click()
    expect(page.locator("tbody th").first).to_have_text("event:4")
    page.goto(f"/topic/{topic.name}/group/billing")
    expect(page.get_by_text("No consumer of this group has claimed anything yet.")).to_be_visible()
    expect(page.locator("#heat span").first).to_have_attribute("title", "slot 0: 5 lag")
    press(page, "Pause group")
    said(page, "paused 1 slot")
    expect(page.locator("#facts")).to_contain_text("1 of 1 slots paused")
    press(page, "Resume group")
    said(page, "resumed 1 slot")
    with client.consumer(topic, group="billing", name="one") as consumer:
        wait_until(lambda: consumer.poll(2, timeout=5), 60)
        page.get_by_role("link", name="in flight").click()
        expect(cells.nth(1)).to_have_text("3", timeout=LIMIT_MS)
        expect(cells.nth(2)).to_have_text("2")
        expect(cells.nth(5)).to_contain_text(" ago")
        expect(page.locator("#consumers tbody th")).to_have_text("one")
        page.get_by_role("link", name="held entries").click()
        expect(page.locator("tbody th")).to_have_text(["event:0", "event:1"])
        expect(page.locator("tbody tr").first).to_contain_text(" ago by one")
        assert violations(page) == []
    assert page.request.get(f"/topic/{topic.name}/group/nobody").status == 404


@pytest.mark.slow
def test_the_figures_live_on(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    topic = shop["merged"]
    page = open_page(f"/topic/{topic.name}")
    backlog = page.locator("#tiles .tile", has_text="Backlog").locator("dd")
    expect(backlog).to_contain_text("20")
    client.producer(topic).send(RangeMergeMessage("one more", time_range_ms=3_600_000))
    # a reading that was slow, as on a busy machine, is kept for longer
    expect(backlog).to_contain_text("21", timeout=LIMIT_MS + LONGEST_REST_S * 1_000)
    press(page, "Live figures")
    expect(page.locator("#live")).to_have_attribute("aria-pressed", "false")
    page.locator(".plot").first.hover()
    expect(page.locator(".tip")).to_be_visible()


def test_the_theme_is_chosen_and_kept(open_page: Open, shop: dict[str, Topic]) -> None:
    del shop
    page = open_page("/", scheme="light")
    press(page, "Switch to dark colours")
    page.goto("/workers")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 27)"
    assert violations(page) == []
    press(page, "Switch to light colours")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"


def test_the_keyboard_is_enough(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    topic = shop["priority"]
    page = open_page(f"/topic/{topic.name}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Pause topic"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    said(page, "paused 16 slots")
    client.control(topic).resume()


def test_it_works_without_script(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    page = open_page(f"/topic/{shop['merged'].name}", java_script_enabled=False)
    expect(page.locator("#tiles")).to_contain_text("20")
    press(page, "Pause topic")
    said(page, "paused 2 slots")
    client.control(shop["merged"]).resume()


@pytest.mark.slow
def test_a_redis_that_is_gone_is_said_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    del tmp_path
    with RedisServer() as server, RmqClient(f"redis://127.0.0.1:{server.port}", deadline_s=1.0) as client:
        client.producer(Topic("jobs", TopicType.PRIORITY)).send(PriorityMessage("a", 100))
        with served(client, Settings()) as address, browser.new_context(base_url=address) as context:
            page = Watched(context, address).page
            page.goto("/")
            server.stop()
            expect(page.locator("#trouble")).to_be_visible(timeout=LIMIT_MS)
            assert page.goto("/topic/jobs/slot/0").status == 503  # pyright: ignore[reportOptionalMemberAccess]
            expect(page.get_by_text("Redis does not answer")).to_be_visible()
