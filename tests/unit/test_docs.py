"""What the pages say of the repository is so: paths, links, and the pitfalls that the tests cite by number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs_site import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MOST_WORDS = 20_000
"""Most words, as `wc -w` counts them, of all pages in docs/internals and CONTRIBUTING.md."""
PITFALLS = ROOT / "docs/internals/pitfalls.md"
SOURCES = [path for folder in ("tests", "rmq", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]

NAMED = re.compile(
    r"(?<![\w./-])((?:rmq|lua|tests|benchmarks|docs|examples)/[\w./-]*(?:\.(?:py|lua|md|json|png)\b|/(?![\w<{*])))"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAME_LINK = re.compile(r"\[`([\w.]+)`\]\(([^)\s]+\.(?:py|lua))\)")
"""A link whose text is a name of the code: `Class`, `Class.method`, `function` or a constant."""
CITED = re.compile(r"\b[Pp]itfalls? (\d+(?:(?:, and|,| and| to) \d+)*)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    named = set(NAMED.findall(page.read_text("utf-8")))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_that_a_page_links_is_in_its_file(page: Path) -> None:
    missing = [
        (names, file)
        for names, file in NAME_LINK.findall(page.read_text("utf-8"))
        for name in names.split(".")
        if not file.endswith(names)  # the file as a whole
        if not re.search(rf"\b{name}\b", (page.parent / file).read_text("utf-8"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_shows_the_program_that_its_comment_names(page: Path) -> None:
    text = page.read_text("utf-8")
    assert blocks.filled(text) == text, "python -m docs_site.blocks"
    assert not re.search(r"<!-- examples/\S* -->\n(?!```)", text), "a comment names a program, and no block follows"
    assert not re.search(r"^--8<--", text, re.MULTILINE), (
        "a page is read in the repository, too, where nothing is included"
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_prose_is_wrapped(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```|^<!-- (?:benchmark|results).*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL | re.M
    )
    prose = [line for line in text.splitlines() if not re.match(r"\||!|#|    ", line)]
    spans_joined = [re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", "_"), line) for line in prose]
    assert [line for line in spans_joined if len(line) > 100 and " " in line.strip(" -")] == []


INSIDE = {"internals", "records", "CONTRIBUTING.md"}


def test_pages_for_maintainers_stay_short_enough_to_be_read() -> None:
    """Who adds a page shortens another: tables that a command writes are in docs/records."""
    written = [*sorted((ROOT / "docs/internals").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
    words = {page.name: len(page.read_text("utf-8").split()) for page in written}
    assert sum(words.values()) <= MOST_WORDS, words
    assert not [page for page in written if re.search(r"^<!-- (?:benchmark|results)", page.read_text("utf-8"), re.M)]


USER_PAGES = [page for page in PAGES if not INSIDE & {*page.parts}]
AVOIDED = re.compile(
    r"(?i)\b(?:mends?|mended|steer(?:s|ed|ing)?|nobody|somebody|told|anew|bears? (?:a second|that)|in whose hands"
    r"|stands? (?:in|on|still|below|there|beside)|goes on|passed over|passes over|what comes of|(?:what|who) is not)\b"
)
"""Words that readers stumbled over, and what stood in for the name of a thing. Instead: fix, manage, no worker,
logged or reported, again, idempotent, in flight, is in, continues, skipped."""


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_pages_for_users_name_things(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert [line for line in text.splitlines() if AVOIDED.search(line)] == []


def test_a_program_stands_below_the_comment_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    page = "a\n\n<!-- examples/a.py -->\n```python\nold\n```\n\n```python\nkept\n```\n"
    (tmp_path / "examples/a.py").write_text('"""Says\none."""\n\nprint(1)\n')
    assert blocks.filled(page, tmp_path) == page.replace("old", "print(1)")
    with pytest.raises(FileNotFoundError, match=r"examples/b\.py"):
        blocks.filled(page.replace("a.py", "b.py"), tmp_path)


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_pages_for_users_have_no_benchmarks(page: Path) -> None:
    found = re.findall(r"^(?:<!-- benchmark.*|\*(?:Medians|Measured) .*)", page.read_text("utf-8"), re.MULTILINE)
    assert found == [], "docs/records/benchmarks.md has them"


def test_lines_of_the_changelog_are_wrapped() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > 150] == []


def test_pitfalls_are_numbered_without_a_gap() -> None:
    numbers = [int(number) for number in re.findall(r"^### (\d+)\. ", PITFALLS.read_text("utf-8"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_pitfall_that_is_cited_stands_on_the_page() -> None:
    known = set(map(int, re.findall(r"^### (\d+)\. ", PITFALLS.read_text("utf-8"), re.MULTILINE)))
    cited = {(name_of(path), number) for path in SOURCES for number in citations(path.read_text("utf-8"))}
    assert len(cited) > 100
    assert sorted((path, number) for path, number in cited if number not in known) == []


def test_every_pitfall_names_a_test_that_shows_it() -> None:
    entries = re.split(r"^### ", PITFALLS.read_text("utf-8"), flags=re.MULTILINE)[1:]
    without = [entry.splitlines()[0] for entry in entries if "**RMQ:**" not in entry or "](../../tests/" not in entry]
    assert without == []


def citations(text: str) -> Iterator[int]:
    for match in CITED.finditer(text):
        numbers = [int(number) for number in re.findall(r"\d+", match[1])]
        yield from range(numbers[0], numbers[-1] + 1) if " to " in match[1] else numbers


def test_citations_are_read_in_all_their_forms() -> None:
    text = "(pitfall 4), # pitfall 8: and 3 more; pitfalls 31, 37, 38; "
    text += "Pitfalls 25 and 27; pitfall 9, and 15; pitfalls 25 to 27"
    assert list(citations(text)) == [4, 8, 31, 37, 38, 25, 27, 9, 15, 25, 26, 27]
