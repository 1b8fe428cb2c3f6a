"""What the search knows of the pages, so that the page that explains a word comes before those that mention it.

The search ranks a word in a title above one in a text, and an early word of a title above a late one. So each entry of
its index gets a title that says where it is: a section that of its page, a public name its full name. A page may have
a comment with the words that readers look for, `<!-- search: rate limit, timeout -->`: they come first.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docs_site.reference import FOLDER

_WORDS = re.compile(r"^<!-- search: (.+) -->$", re.MULTILINE)
_INTERNALS = ("internals/", "records/", "contributing.html", "changelog.html")


def rank(site: Path, pages: Path, order: list[str]) -> None:
    """Write the titles of the search's index.

    Args:
        site: The built site.
        pages: The staged pages.
        order: The pages in the order of the navigation: of equals, the search takes the first.
    """
    index = json.loads((site / "search.json").read_text("utf-8"))
    places = {name.removesuffix("md") + "html": place for place, name in enumerate(order)}
    index["items"].sort(key=lambda item: places[_page(item)])  # is stable: sections stay in the order of their page
    title = ""
    for item in index["items"]:
        page = _page(item)
        if item["level"] == 1:
            words = _WORDS.search((pages / page).with_suffix(".md").read_text("utf-8"))
            title = f"Internals: {item['title']}" if page.startswith(_INTERNALS) else item["title"]
            title = f"API reference: {title}" if page.startswith(FOLDER) else title
            item["title"] = f"{words[1][0].upper()}{words[1][1:]}: {title}" if words else title
        else:
            name = item["location"].partition("#")[2] if page.startswith(FOLDER) else item["title"]
            item["title"] = f"{title}: {name}"
    (site / "search.json").write_text(json.dumps(index, ensure_ascii=False), "utf-8")


def _page(item: dict[str, Any]) -> str:
    return item["location"].partition("#")[0]
