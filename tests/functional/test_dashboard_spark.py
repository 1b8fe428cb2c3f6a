"""Spark's queries in the dashboard, in a real browser: a line for each on the page of its topic."""

from __future__ import annotations

from playwright.sync_api import expect

from rmq import RmqClient, Topic
from tests.support.browser import MARKS, Open
from tests.support.core import Connections, parse_url, spark_queries_key

pytestmark = MARKS


def test_each_query_has_a_line_on_the_page_of_its_topic(
    open_page: Open, client: RmqClient, shop: dict[str, Topic]
) -> None:
    page = open_page(f"/topic/{shop['merged'].name}")
    table = page.get_by_role("region", name="Spark")
    expect(table.locator("tbody th")).to_have_text(["0a1b2c"])
    cells = table.locator("tbody td")
    texts = ["source", "42", "12,345", "–", "–", "–", "7", "678"]
    for place, text in enumerate(texts):
        expect(cells.nth(place)).to_have_text(text)
    expect(cells.nth(8)).to_contain_text(" s")
    expect(cells.nth(9)).to_have_text("1.5 s")
    expect(cells.nth(10)).to_contain_text(" ago")

    page.goto(f"/topic/{shop['stream'].name}")
    expect(table.locator("tbody th")).to_have_text(["<b>feed</b>"])
    for place, text in enumerate(["write", "3", "9,000", "8,000", "1,000", "100", "–", "–", "–"]):
        expect(cells.nth(place)).to_have_text(text)

    page.goto(f"/topic/{shop['priority'].name}")
    expect(page.locator("#spark")).to_be_empty()


def test_a_foreign_report_hides_no_page(open_page: Open, client: RmqClient, shop: dict[str, Topic]) -> None:
    connections, key = Connections(parse_url(client.url)), spark_queries_key(shop["priority"].name)
    connections.command("SET", key, "not ours")
    connections.close()
    page = open_page(f"/topic/{shop['priority'].name}")
    expect(page.locator("#spark")).to_be_empty()
    expect(page.locator("#tabs")).to_be_visible()
