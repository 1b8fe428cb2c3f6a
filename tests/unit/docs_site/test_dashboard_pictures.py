"""Each page of the dashboard has a picture in the documentation, and each picture is small."""

from __future__ import annotations

import re
from pathlib import Path

from rmq.dashboard.pages import Views

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
FOLDER = GUIDE / "dashboard"
MOST_BYTES = 80_000

PAGES = {
    "/": "overview", "/topic/{name}": "topic", "/topic/{name}/slot/{slot}": "slot",
    "/topic/{name}/group/{group}": "group", "/topic/{name}/entries": "entries",
    "/workers": "workers", "/worker/{name}": "worker", "/search": "search", "/schedules": "schedules",
    "/find": "find", "/message": "message", "/dead": "dead", "/audit": "audit",
}  # fmt: skip
"""Address of a page -> its picture."""


def test_each_page_has_a_picture_and_each_picture_is_shown() -> None:
    there = {path.stem for path in FOLDER.glob("*.png")}
    shown = re.findall(r"!\[[^]]+\]\(dashboard/([a-z-]+)\.png\)", (GUIDE / "dashboard.md").read_text("utf-8"))
    assert sorted(shown) == sorted(there)
    assert set(PAGES.values()) <= there


def test_no_page_is_without_a_line_here() -> None:
    views = Views.__new__(Views)
    assert {route.path for route in views.routes()} == PAGES.keys()


def test_pictures_are_small() -> None:
    assert not {path.name: path.stat().st_size for path in FOLDER.glob("*.png") if path.stat().st_size > MOST_BYTES}
