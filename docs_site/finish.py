"""What the generator leaves to be done: pages that all readers can use, and texts for programs that read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docs_site import search
from docs_site.navigation import Entries, pages_of, title_of
from docs_site.staging import SiteError

HIDDEN = re.compile(r'(<input class="md-option"[^>]*aria-hidden="true")')
"""The theme's switches of colours. They are hidden, so that the focus must not stop at them."""


def finish(site: Path, pages: Path, settings: dict[str, Any]) -> None:
    """Mend the built pages and the search's index, and write llms.txt and llms-full.txt beside them.

    Args:
        site: The built site.
        pages: The staged pages.
        settings: Those of mkdocs.yml, with the whole navigation.

    Raises:
        SiteError: The generator makes other pages than those that this was written for.
    """
    (site / "404.html").unlink()  # for a host of its own at the root; the site is a folder that works anywhere
    for path in site.rglob("*.html"):
        text, found = HIDDEN.subn(r'\1 tabindex="-1"', path.read_text("utf-8"))
        if not found:
            raise SiteError(f"{path.name} has no hidden switch of colours: docs_site/finish.py waits for one")
        path.write_text(text, "utf-8")
    search.rank(site, pages, list(pages_of(settings["nav"])))
    listed = _listed(settings["nav"], pages)
    head = f"# {settings['site_name']}\n\n> {settings['site_description']}\n"
    index = "".join(f"\n## {title}\n\n{_links(entries)}" for title, entries in listed.items())
    (site / "llms.txt").write_text(f"{head}\nAll pages in one file: [llms-full.txt](llms-full.txt)\n{index}", "utf-8")
    texts = [
        (pages / page).read_text("utf-8")
        for entries in listed.values()
        for _, page in entries
        if "reference/" not in page
    ]
    (site / "llms-full.txt").write_text("\n\n---\n\n".join([head, *texts]), "utf-8")


def _listed(nav: Entries, pages: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the sections of the site, each with the titles and names of its pages."""
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in nav:
        for title, value in entry.items():
            found[title] = [(title_of(pages / name), name) for name in pages_of([{title: value}])]
    return found


def _links(entries: list[tuple[str, str]]) -> str:
    return "".join(f"- [{title}]({name.removesuffix('.md')}.html)\n" for title, name in entries)
