"""What a reader of the site can copy from a page: its blocks of code, its commands, and what programs print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(pip install [^`]+)`")
_SHELL = {"", "bash", "sh", "console"}


@dataclass(frozen=True)
class Page:
    """A page of the documentation.

    Args:
        root: The checkout.
        name: Its path below docs/, without `.md`; or that of a file of the checkout that a page links to.
    """

    root: Path
    name: str

    @cached_property
    def text(self) -> str:
        return (self.root / "docs" / f"{self.name}.md").read_text("utf-8")

    def _blocks(self) -> list[tuple[str, str]]:
        return [(found[1], found[2]) for found in _FENCE.finditer(self.text)]

    def program(self, containing: str) -> str:
        """Return the first block of Python with these words."""
        return next(text for language, text in self._blocks() if language == "python" and containing in text)

    def printed(self, after: str) -> str:
        """Return what the page says is printed: the first block without a language after these words."""
        _, found, rest = self.text.partition(after)
        assert found, f"{self.name} does not say {after!r}"
        return next(text for language, text in ((m[1], m[2]) for m in _FENCE.finditer(rest)) if not language)

    def commands(self) -> list[str]:
        """Return the lines of all blocks for a shell, without their comments, and the `pip install` in the text."""
        lines = [line for language, text in self._blocks() if language in _SHELL for line in text.splitlines()]
        bare = (re.sub(r"\s{2,}#.*", "", line.removeprefix("$ ")).strip() for line in lines)
        return [*(found[1] for found in _INLINE.finditer(self.text)), *filter(None, bare)]

    def command(self, start: str) -> str:
        """Return the first command that begins so."""
        found = [each for each in self.commands() if each.startswith(start)]
        assert found, f"{self.name} has no command {start!r}"
        return found[0]

    def linked(self, file: str) -> str:
        """Return a file of the checkout that the page links to: the site shows it as a page."""
        assert file in self.text, f"{self.name} has no link to {file}"
        return (self.root / file).read_text("utf-8")
