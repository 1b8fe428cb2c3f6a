"""The documentation site: what staging, navigation and the check of links refuse, each on pages of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import rmq
from docs_site import check, navigation, reference
from docs_site.staging import PLACED, ROOT, SiteError, Staging

REPOSITORY = {"README.md": "# Readme\n", "CONTRIBUTING.md": "# Contributing\n", "CHANGELOG.md": "# Changelog\n"}


def staged(folder: Path, **more: str) -> Staging:
    """Stage pages of a small repository. `__` in a name stands for a slash."""
    root = folder / "root"
    for name, text in {**REPOSITORY, **more}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    staging = Staging(folder / "pages", root)
    staging.stage()
    return staging


def test_a_link_to_code_leads_to_its_text(tmp_path: Path) -> None:
    page = {"docs__guide__a.md": "# A\n\n[code](../../code.py) [other](b.md#c)\n", "docs__guide__b.md": "# B\n\n## C\n"}
    staging = staged(tmp_path, **page, **{"code.py": "print(1)\n"})
    text = (staging.folder / "guide/a.md").read_text("utf-8")
    assert text == "# A\n\n[code](../source/code.py.txt) [other](b.md#c)\n"
    assert (staging.folder / "source/code.py.txt").read_bytes() == b"\xef\xbb\xbfprint(1)\n"


def test_links_in_code_stay_as_they_are(tmp_path: Path) -> None:
    text = "# A\n\n```\n[no](link.md)\n```\n\n[yes](b.md)\n"
    staging = staged(tmp_path, **{"docs__a.md": text, "docs__b.md": "# B\n"})
    assert (staging.folder / "a.md").read_text("utf-8") == text


def test_the_readme_is_the_home_page_unless_there_is_one(tmp_path: Path) -> None:
    staging = staged(tmp_path, **{"docs__guide__a.md": "# A\n\n[why](../../README.md#readme)\n"})
    assert (staging.folder / "index.md").read_text("utf-8") == "# Readme\n"
    assert "(../index.md#readme)" in (staging.folder / "guide/a.md").read_text("utf-8")
    staging = staged(tmp_path, **{"docs__index.md": "# Home\n"})
    assert (staging.folder / "index.md").read_text("utf-8") == "# Home\n"


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"docs/a\.md links to b\.md: there is no docs/b\.md"):
        staged(tmp_path, **{"docs__a.md": "# A\n\n[b](b.md)\n"})


def test_a_file_that_no_page_can_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"data\.gz: the site cannot show files that end in '\.gz'"):
        staged(tmp_path, **{"docs__a.md": "# A\n\n[data](../data.gz)\n", "data.gz": ""})


def test_new_pages_stand_at_the_end_of_their_section(tmp_path: Path) -> None:
    staging = staged(tmp_path, **{"docs__guide__a.md": "# A\n", "docs__guide__new.md": "# A `new` page\n"})
    entries = [{"Home": "index.md"}, "contributing.md", "changelog.md", {"Guide": ["guide/a.md"]}]
    completed = navigation.complete(entries, staging.folder)
    assert completed[-1] == {"Guide": ["guide/a.md", {"A new page": "guide/new.md"}]}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["index.md"], r"no section in the nav of mkdocs\.yml takes pages of docs/changelog"),
        (["index.md", {"A": ["index.md"]}], r"names index\.md twice"),
        (["index.md", "gone.md"], r"names gone\.md: docs/ has no such page"),
    ],
)
def test_a_navigation_that_is_not_right_is_refused(tmp_path: Path, entries: navigation.Entries, message: str) -> None:
    staging = staged(tmp_path)
    with pytest.raises(SiteError, match=message):
        navigation.complete(entries, staging.folder)


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="b.html">', "a.html links to b.html: there is no such page"),
        ('<p id="here"><a href="#there">', "a.html links to #there: that page has no such place"),
        ('<script src="https://x.example/a.js">', "a.html loads https://x.example/a.js: the site must work offline"),
        (
            '<link rel="stylesheet" href="//x.example/a.css">',
            "a.html loads //x.example/a.css: the site must work offline",
        ),
        ('<img src="gone.png">', "a.html links to gone.png: there is no such page"),
    ],
)
def test_faults_of_a_built_site_are_found(tmp_path: Path, html: str, fault: str) -> None:
    (tmp_path / "a.html").write_text(html, "utf-8")
    assert list(check.faults(tmp_path)) == [fault]


def test_a_site_without_faults_has_none(tmp_path: Path) -> None:
    html = '<p id="here"><a href="#here"></a><a href="https://x.example/"></a><a href="a.html#here"></a>'
    (tmp_path / "a.html").write_text(html, "utf-8")
    assert list(check.faults(tmp_path)) == []


def test_the_site_has_few_pages_in_two_levels() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    sections = [value for entry in nav for value in entry.values() if isinstance(value, list)]
    assert all(isinstance(page, str) for section in sections for page in section)
    assert len(list((ROOT / "docs").rglob("*.md"))) + len(PLACED) + len(reference.PAGES) + 1 < 120


def test_a_table_of_methods_has_every_public_one(tmp_path: Path) -> None:
    page = tmp_path / "operate/a.md"
    page.parent.mkdir()
    page.write_text("# A\n\n<!-- methods of rmq.Control -->\nSee\nthere.\n\nb\n", "utf-8")
    reference.fill(tmp_path)
    text = page.read_text("utf-8")
    assert text.startswith("# A\n\n| call | effect | returns |\n")
    assert text.endswith("|\n\nb\n")
    named = re.findall(r"^\| \[`(\w+)\(.*`\]\(\.\./reference/steering\.md#rmq\.Control\.\1\) \| \w", text, re.M)
    assert named == [each for each in vars(rmq.Control) if not each.startswith("_")]


def test_ci_builds_the_site() -> None:
    assert "\n    make docs\n" in (ROOT / ".ci/run").read_text("utf-8")
