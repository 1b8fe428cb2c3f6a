"""A real browser for the tests of the dashboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
LIMIT_MS = 30_000

MARKS = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
    pytest.mark.timeout(400),
]
"""Of each module with tests in a browser."""

Open = Callable[..., Page]


class Watched:
    """A browser's window, and all that it says and asks for."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.complaints: list[str] = []
        self.abroad: list[str] = []
        self._host = urlsplit(address).netloc
        context.set_default_timeout(LIMIT_MS)
        context.route("**/*", self._pass)
        self.page = context.new_page()
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self._heard("error", str(error)))

    def _pass(self, route: Route) -> None:
        if urlsplit(route.request.url).netloc == self._host:
            route.continue_()
        else:
            self.abroad.append(route.request.url)
            route.abort()

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)


def violations(page: Page) -> list[str]:
    """What axe-core finds serious or worse on a page. Its script goes in as the developer tools' would."""
    script = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    page.evaluate(script)
    found: Any = page.evaluate("async () => JSON.stringify((await axe.run()).violations)")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0].get('failureSummary', '')}"
        for each in json.loads(found)
        if each["impact"] in ("serious", "critical")
    ]


def said(page: Page, text: str) -> None:
    expect(page.locator("main .note", has_text=text).first).to_be_visible(timeout=LIMIT_MS)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).first.click()
