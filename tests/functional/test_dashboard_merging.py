"""Topics that merge in the dashboard, in a real browser: their rule, and what the sends of a message came to."""

from __future__ import annotations

from playwright.sync_api import expect

from rmq import PriorityMessage, RmqClient, Topic
from tests.support.browser import MARKS, Open

pytestmark = MARKS


def test_topics_that_merge_show_what_sends_came_to(open_page: Open, shop: dict[str, Topic]) -> None:
    sums, items = shop["sums"].name, shop["items"].name
    page = open_page("/")
    expect(page.locator("#topics tr", has_text=sums)).to_contain_text("range-merge sum")
    page.goto(f"/topic/{sums}")
    expect(page.locator("#tiles")).to_contain_text("66.7%")
    expect(page.locator("#merging dd")).to_have_text(
        ["sum: the sum of the numbers", "fixed, due 1 h after the first send", "due at once with 99 sends"]
    )
    page.goto(f"/search?topic={sums}")
    expect(page.locator("thead th")).to_have_text(
        "Select;Content;Place;Due;Held;Retries left;Slot;Value;Sends;First sent;Last sent".split(";")
    )
    cells = page.locator("tbody tr td")
    expect(cells.nth(6)).to_have_text("-5.5")
    expect(cells.nth(7)).to_have_text("3")
    expect(cells.nth(8)).to_contain_text(" ago")
    page.get_by_role("link", name="item:42").click()
    expect(page.locator(".place .number")).to_have_text("-5.5")
    expect(page.locator(".place .facts")).to_contain_text("3 sends · first sent ")
    page.goto(f"/dead?topic={items}")
    expect(page.locator("td.value")).to_have_text("120: <i>tag 0</i>, <i>tag 1</i>, <i>tag 2</i>, …")
    page.get_by_role("link", name="page").first.click()
    expect(page.get_by_role("region", name="Items", exact=True).locator("li")).to_have_count(2)
    expect(page.get_by_role("region", name="Items of the dead").locator("li")).to_have_count(50)
    expect(page.get_by_text("and 70 more")).to_be_visible()


def test_items_are_shown_and_never_obeyed(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    topic = shop["items"]
    hostile = (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "\x1b]0;owned\x07",
        b"\xff\xfe",
        "é" * 9_000,
    )
    client.producer(topic).send(PriorityMessage("hostile", 9, body=hostile))
    page = open_page(f"/message?topic={topic.name}&content=hostile")
    shown = page.get_by_role("region", name="Items", exact=True).locator("li")
    expect(shown).to_have_text(
        [*hostile[:2], "\\x1b]0;owned\\x07", "ff fe hex", f"{'é' * 160}… 18,000 bytes"], use_inner_text=True
    )
    for path in (f"/search?topic={topic.name}", f"/topic/{topic.name}/slot/0"):
        page.goto(path)
        expect(page.locator("td.value", has_text="<script>alert(1)</script>, <img src=x")).to_be_visible()
        assert page.locator("td.value script, td.value img").count() == 0
        assert len(page.content()) < 30_000
