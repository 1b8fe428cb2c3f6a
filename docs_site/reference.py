"""The pages of the API reference: every public name, by the module that defines it."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docs_site.staging import SiteError

FOLDER = "reference"
_METHODS = re.compile(r"^<!-- methods of (\S+) -->\n(?:.+\n)+", re.MULTILINE)
_RETURNS = re.compile(r"^Returns\b[^:]*:\s+(.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
PAGES = {
    "client": ("Client", "rmq.client", "rmq._listening", "rmq._processes"),
    "topics": ("Topics", "rmq._model.topic", "rmq._model.retry", "rmq._model.scores"),
    "messages": ("Messages and sending", "rmq._model.messages", "rmq._model.encoding", "rmq._model.replies",
                 "rmq._sending"),
    "deliveries": ("Deliveries", "rmq._model.deliver", "rmq._claiming"),
    "merging": ("Merging", "rmq._model.merg"),
    "delayed": ("Delayed queue", "rmq.delayed"),
    "steering": ("Inspection and control", "rmq._admin", "rmq._registry.registry"),
    "streams": ("Streams", "rmq._admin.stream_topic", "rmq._model.entries"),
    "schedules": ("Schedules", "rmq._schedules"),
    "figures": ("Figures and workers", "rmq._admin.figures", "rmq._model.workers"),
    "watching": ("Observers and logs", "rmq._io.observers", "rmq.logs"),
    "ownership": ("Owners of slots", "rmq._ownership", "rmq._model.replies.Owner"),
    "errors": ("Errors", "rmq.errors"),
    "aio": ("rmq.aio", "rmq.aio"),
    "adapters": ("rmq.adapters", "rmq.adapters"),
    "metrics": ("rmq.metrics", "rmq.metrics"),
    "otel": ("rmq.otel", "rmq.otel"),
    "spark": ("rmq.spark", "rmq.spark"),
    "testing": ("rmq.testing", "rmq.testing"),
    "others": ("Others", "rmq"),
}  # fmt: skip
"""Page -> its title, and how the places begin where its names are defined: a module, or a name in one. The longest
beginning decides."""
MODULES = (
    "rmq",
    "rmq.adapters.django",
    "rmq.adapters.fastapi",
    "rmq.adapters.flask",
    "rmq.aio",
    "rmq.metrics",
    "rmq.otel",
    "rmq.spark",
    "rmq.testing",
)
OPEN = """# API reference

All public names, from the docstrings. Users import from `rmq`, `rmq.aio`, `rmq.adapters`,
`rmq.metrics`, `rmq.otel`, `rmq.spark` and `rmq.testing` only.

The examples run in the tests as they stand. Before each stands, unless it says otherwise:

```python
from datetime import UTC, datetime, timedelta

from rmq import *

client = RmqClient("embedded://")
```
"""


@dataclass(frozen=True)
class Name:
    """A public name.

    Attributes:
        path: Where users import it from, such as `rmq.Topic`.
        home: The module that defines it.
        summary: The first line of its docstring.
    """

    path: str
    home: str
    summary: str


def public_names() -> Iterator[Name]:
    """Yield all public names.

    Raises:
        SiteError: One has no docstring.
    """
    for module in map(importlib.import_module, MODULES):
        for name in sorted(module.__all__):
            if name != "__version__":
                yield _name(module.__name__, name, getattr(module, name))


def write(pages: Path) -> list[dict[str, str]]:
    """Write the reference below the staged pages, and return its entries of the navigation."""
    found = dict[str, list[Name]]({page: [] for page in PAGES})
    for name in public_names():
        found[page_of(f"{name.home}.{name.path.rpartition('.')[2]}")].append(name)
    folder = pages / FOLDER
    folder.mkdir(exist_ok=True)
    index, entries = [OPEN], [{"Overview": f"{FOLDER}/index.md"}]
    for page, names in found.items():
        if names:
            title = PAGES[page][0]
            blocks = "".join(f"\n::: {name.path}\n" for name in names)
            (folder / f"{page}.md").write_text(f"# {title}\n{blocks}", "utf-8")
            rows = "".join(f"| [`{name.path}`]({page}.md#{name.path}) | {name.summary} |\n" for name in names)
            index.append(f"\n## {title}\n\n| name | meaning |\n|---|---|\n{rows}")
            entries.append({title: f"{FOLDER}/{page}.md"})
    (folder / "index.md").write_text("".join(index), "utf-8")
    return entries


def fill(pages: Path) -> None:
    """Put a table of methods in the place of each paragraph below a comment, such as `<!-- methods of rmq.Control -->`.

    Raises:
        SiteError: A method has no docstring.
    """
    for page in sorted(pages.rglob("*.md")):
        rows = partial(_methods, os.path.relpath(pages / FOLDER, page.parent))
        page.write_text(_METHODS.sub(rows, page.read_text("utf-8")), "utf-8")


def _methods(folder: str, comment: re.Match[str]) -> str:
    """Return a row for each method of a class: how it is called, what it does, and what it returns."""
    module, _, name = (path := comment[1]).rpartition(".")
    value = getattr(importlib.import_module(module), name)
    page, rows = page_of(f"{value.__module__}.{name}"), "| call | effect | returns |\n|---|---|---|\n"
    for each, method in vars(value).items():
        if each.startswith("_"):
            continue
        taken = [part.replace(annotation=part.empty) for part in inspect.signature(method).parameters.values()]
        call = f"[`{each}{inspect.Signature(taken[1:])}`]({folder}/{page}.md#{path}.{each})"
        returns = _RETURNS.search(inspect.getdoc(method) or "")
        rows += f"| {call} | {_name(path, each, method).summary} | {_cell(returns[1]) if returns else ''} |\n"
    return rows


def page_of(home: str) -> str:
    """Return the page for a name that is defined there."""
    _, page = max(
        (len(start), page) for page, (_, *starts) in PAGES.items() for start in starts if home.startswith(start)
    )
    return page


def _name(module: str, name: str, value: Any) -> Name:
    path = f"{module}.{name}"
    text = inspect.getdoc(value)
    if not text:
        raise SiteError(f"{path} is public and has no docstring")
    is_error = isinstance(value, type) and issubclass(value, Exception)
    home = "rmq.errors" if is_error else getattr(value, "__module__", module)
    return Name(path, home if module == "rmq" else module, _cell(text.partition("\n\n")[0]))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
