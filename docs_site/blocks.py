"""Programs on the pages: `python -m docs_site.blocks` writes each below the comment that names its file.

A comment `<!-- examples/quickstart.py -->` right above a block of code says what the block shows: the file without
the docstring of the module, because the page says what the program does.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs_site.staging import DOCS, ROOT

_BLOCK = re.compile(r"^(<!-- (examples/\S+) -->\n```\w*\n).*?^```$", re.MULTILINE | re.DOTALL)
_DOCSTRING = re.compile(r'\A""".*?"""\n+', re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that are read in the repository and may show programs."""
    return [root / "README.md", *sorted((root / DOCS).rglob("*.md"))]


def filled(text: str, root: Path = ROOT) -> str:
    """Return a page's text with the program in each block that names one.

    Raises:
        FileNotFoundError: A comment names no file of the repository.
    """

    def program(block: re.Match[str]) -> str:
        code = (root / block[2]).read_text("utf-8")
        return f"{block[1]}{_DOCSTRING.sub('', code)}```"

    return _BLOCK.sub(program, text)


def main() -> None:
    """Write the programs into all pages."""
    for page in pages():
        text = page.read_text("utf-8")
        if (now := filled(text)) != text:
            page.write_text(now, "utf-8")
            print(f"{page.relative_to(ROOT)}: changed")


if __name__ == "__main__":
    main()
