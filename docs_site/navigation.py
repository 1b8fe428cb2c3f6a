"""The order of the pages: that of mkdocs.yml, and new pages at the end of their folder's section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site.staging import SiteError

SECTIONS = {
    "tutorial": "Tutorial",
    "guide": "Guide",
    "coming-from": "Compare",
    "operate": "Operate",
    "internals": "Internals",
    "records": "Records",
    "reference": "Reference",
}
"""Folders of docs/ -> section for the pages that mkdocs.yml does not name."""
Entries = list[Any]


def complete(entries: Entries, pages: Path) -> Entries:
    """Return the navigation with all pages in it.

    Args:
        entries: What mkdocs.yml names.
        pages: The folder of the staged pages.

    Raises:
        SiteError: An entry names no page, a page is named twice, or nothing says where a page belongs.
    """
    named = list(pages_of(entries))
    twice = sorted({page for page in named if named.count(page) > 1})
    if twice:
        raise SiteError(f"mkdocs.yml names {', '.join(twice)} twice in its nav")
    there = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    if gone := sorted(set(named) - there):
        raise SiteError(f"the nav of mkdocs.yml names {', '.join(gone)}: docs/ has no such page")
    for page in sorted(there - set(named)):
        section(entries, page.partition("/")[0]).append({title_of(pages / page): page})
    return entries


def pages_of(entries: Entries) -> Iterator[str]:
    """Yield the pages of a navigation, in order."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else pages_of(value)


def title_of(page: Path) -> str:
    """Return the title of a page: its first heading."""
    found = re.search(r"^# (.+)$", page.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise SiteError(f"{page.name} has no heading: the site needs one for its title")
    return re.sub(r"[`*]", "", found[1])


def section(entries: Entries, folder: str) -> Entries:
    """Return the entries of the section that takes the pages of a folder.

    Raises:
        SiteError: No section takes them.
    """
    wanted = SECTIONS.get(folder)
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get(wanted), list):
            return entry[wanted]
    raise SiteError(f"no section in the nav of mkdocs.yml takes pages of docs/{folder}/: name them there")
