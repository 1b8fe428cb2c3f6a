"""What the built site must hold, whatever has built it: links lead somewhere, and nothing comes from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

_EXTERNAL = re.compile(r"(?:[a-z][a-z+.-]*:|//)")
_LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("image", "href")}
"""What a browser loads by itself. Of `<link>`, that depends on its `rel`."""
_RELS_LOADED = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest"}


@dataclass
class _Page(HTMLParser):
    ids: set[str] = field(default_factory=set[str])
    links: list[str] = field(default_factory=list[str])
    loaded: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name not in values:
                continue
            loaded = (tag, name) in _LOADED
            if tag == "link":
                loaded = bool(_RELS_LOADED & set(values.get("rel", "").split()))
            (self.loaded if loaded else self.links).append(values[name])


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with a built site, one line each."""

    @cache
    def read(path: Path) -> _Page:
        page = _Page()
        page.feed(path.read_text("utf-8"))
        return page

    for path in sorted(site.rglob("*.html")):
        page, name = read(path), path.relative_to(site).as_posix()
        for link in page.loaded:
            if _EXTERNAL.match(link) and not link.startswith("data:"):
                yield f"{name} loads {link}: the site must work offline"
        for link in [*page.links, *page.loaded]:
            if _EXTERNAL.match(link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = path if not file else (path.parent / file).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name} links to {link}: there is no such page"
            elif anchor and target.suffix == ".html" and anchor not in read(target).ids:
                yield f"{name} links to {link}: that page has no such place"
