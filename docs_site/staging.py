"""Puts together the pages of the site: docs/ as it stands, and a copy of each other file that they link to.

The pages in docs/ are read in the repository, too. There, a link may lead to any file: code, tests, results. The site
has such a file as plain text, so that it needs no other host. It is no page: search and navigation leave it out.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
TEXTS = {".py", ".lua", ".toml", ".json", ".yml", ".md", ".pml", ".txt", ".sh", ".cfg", ""}
"""Endings of the files that a browser shows as text."""
PICTURES = {".png", ".svg"}
PLACED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages under another name."""

_FENCED = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_EXTERNAL = re.compile(r"[a-z][a-z+.-]*:")


class SiteError(Exception):
    """A page cannot stand in the site. The message says which one, and why."""


@dataclass
class Staging:
    """Writes pages into a folder, from which the generator builds the site.

    Args:
        folder: It is emptied first.
        root: The repository.
    """

    folder: Path
    root: Path = ROOT
    sources: dict[str, str] = field(default_factory=dict[str, str])
    """Files of the repository that pages link to -> text, or picture, in the site."""

    def stage(self) -> None:
        """Write all pages.

        Raises:
            SiteError: A link leads to no file.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for path in sorted((self.root / DOCS).rglob("*")):
            if path.is_file():
                self._stage(path, path.relative_to(self.root / DOCS).as_posix())
        for name, page in PLACED.items():
            if not (self.folder / page).exists():
                self._stage(self.root / name, page)
        for source, page in list(self.sources.items()):
            self._write_source(source, page)

    def _stage(self, path: Path, page: str) -> None:
        target = self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(path, target)
            return
        text = path.read_text("utf-8")
        target.write_text(outside_fences(text, lambda prose: self._relink(prose, path, page)), "utf-8")

    def _relink(self, prose: str, path: Path, page: str) -> str:
        return _LINK.sub(lambda link: self._target(link[1], path, page), prose)

    def _target(self, link: str, path: Path, page: str) -> str:
        """Return a link of a page as it is in the site."""
        file, mark, anchor = link.partition("#")
        if not file or _EXTERNAL.match(link):
            return link
        source = os.path.relpath((path.parent / file).resolve(), self.root)
        if not (self.root / source).exists():
            raise SiteError(f"{path.relative_to(self.root)} links to {link}: there is no {source}")
        return posixpath.relpath(self._place(source), posixpath.dirname(page) or ".") + mark + anchor

    def _place(self, source: str) -> str:
        """Return where the site has a file of the repository."""
        if source in PLACED:
            return PLACED[source]
        if source.startswith(f"{DOCS}/") and (self.root / source).is_file():
            return source.removeprefix(f"{DOCS}/")
        if source not in self.sources:
            suffix = Path(source).suffix
            self.sources[source] = f"source/{source}" if suffix in PICTURES else f"source/{source}.txt"
        return self.sources[source]

    def _write_source(self, source: str, page: str) -> None:
        path, target = self.root / source, self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in PICTURES:
            shutil.copyfile(path, target)
        elif path.is_dir():
            _write(target, "\n".join(sorted(each.name for each in path.iterdir() if each.name != "__pycache__")))
        elif path.suffix in TEXTS:
            _write(target, path.read_text("utf-8"))
        else:
            raise SiteError(f"a page links to {source}: the site cannot show files that end in {path.suffix!r}")


def _write(target: Path, text: str) -> None:
    """Write a text with the mark by which browsers know UTF-8, also where a server names no encoding."""
    target.write_text(text, "utf-8-sig")


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Return a page with all changed but its blocks of code."""
    parts, done = list[str](), 0
    for fenced in _FENCED.finditer(text):
        parts += [change(text[done : fenced.start()]), fenced[0]]
        done = fenced.end()
    return "".join([*parts, change(text[done:])])
