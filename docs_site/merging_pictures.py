"""Draws the pictures in docs/guide/merging/: what windows and reducers make of some sends.

`python -m docs_site.merging_pictures`; needs nothing but RMQ. tests/lua/test_merging_pictures.py plays the same sends
to Redis, and compares what is delivered, and when, with what is drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rmq import Collect, Fixed, Keep, Leading, Max, Merge, Min, Newest, Replace, Sliding, Sum

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "guide" / "merging"

SENDS_MS = (0, 500, 1_200, 4_100, 4_900, 5_700, 6_600, 7_500, 8_400)
"""When one content is sent, in each row of the picture of windows."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A row of the picture of windows.

    Attributes:
        title: The window, as it is written in a program.
        words: What it does.
        merge: The same, for the topic.
        deliveries: When each delivery is due, ms, and how many sends it stands for.
        dropped: Which sends are dropped.
    """

    title: str
    words: str
    merge: Merge
    deliveries: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...] = ()


TIMELINES = (
    Timeline(
        "Fixed(2 s)",
        "2 s after the first send",
        Merge(window=Fixed("2s")),
        ((2_000, 3), (6_100, 3), (8_600, 3)),
    ),
    Timeline(
        "Sliding(quiet=1.5 s, max_wait=4 s)",
        "once nothing was sent for 1.5 s, at the latest 4 s after the first send",
        Merge(window=Sliding("1s500ms", max_wait="4s")),
        ((2_700, 3), (8_100, 5), (9_900, 1)),
    ),
    Timeline(
        "Leading(2 s)",
        "at once, then at the end of each window of 2 s in which something was sent",
        Merge(window=Leading("2s")),
        ((0, 1), (2_000, 2), (4_100, 1), (6_100, 2), (8_100, 2), (10_100, 1)),
    ),
    Timeline(
        "Leading(2 s, trailing=False)",
        "at once; what is sent in the 2 s after that is dropped",
        Merge(window=Leading("2s", trailing=False)),
        ((0, 1), (4_100, 1), (6_600, 1)),
        dropped=(500, 1_200, 4_900, 5_700, 7_500, 8_400),
    ),
    Timeline(
        "Fixed(3 s), max_count=4",
        "3 s after the first send, or with the fourth",
        Merge(window=Fixed("3s"), max_count=4),
        ((3_000, 3), (6_600, 4), (10_500, 2)),
    ),
)


@dataclass(frozen=True, slots=True)
class Folding:
    """A row of the picture of reducers.

    Attributes:
        title: The reducer, as it is written in a program.
        merge: The same, for the topic.
        bodies: What is sent, in this order.
        value: What the delivery has as its value.
        versions: Of the sends, for `Newest`.
    """

    title: str
    merge: Merge
    bodies: tuple[Any, ...]
    value: Any
    versions: tuple[int | None, ...] = (None, None, None)


FOLDINGS = (
    Folding("Keep()", Merge(Keep()), ("a", "b", "c"), b"a"),
    Folding("Replace()", Merge(Replace()), ("a", "b", "c"), b"c"),
    Folding("Newest()", Merge(Newest()), ("a", "b", "c"), b"b", (7, 9, 8)),
    Folding("Max()", Merge(Max()), (3, 8, -2), 8),
    Folding("Min()", Merge(Min()), (3, 8, -2), -2),
    Folding("Sum()", Merge(Sum()), (3, 8, -2), 9),
    Folding("Collect()", Merge(Collect()), ("a", "b", "a"), (b"a", b"b", b"a")),
    Folding("Collect(unique=True)", Merge(Collect(unique=True)), ("a", "b", "a"), (b"a", b"b")),
)

WIDTH = 820
STYLE = """
  text { font: 13px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
  .head { font-weight: 600; } .small { font-size: 11px; } .soft { fill: #59636e; }
  .mono { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, monospace; }
  .page { fill: #ffffff; } .line { stroke: #d1d9e0; } .box { fill: #f6f8fa; stroke: #d1d9e0; }
  .fill0 { fill: #0969da; } .fill1 { fill: #bc4c00; } .band0 { fill: #0969da26; } .band1 { fill: #bc4c0026; }
  .cross { stroke: #818b98; stroke-width: 1.6; } .arrow { stroke: #818b98; stroke-width: 1.4; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .soft { fill: #9198a1; } .page { fill: #0d1117; } .line { stroke: #3d444d; }
    .box { fill: #151b23; stroke: #3d444d; } .fill0 { fill: #4493f8; } .fill1 { fill: #f0883e; }
    .band0 { fill: #4493f833; } .band1 { fill: #f0883e33; }
  }
""".strip("\n")


def windows() -> str:
    """Return the picture of windows: a row each, sends as dots, deliveries as flags."""
    left, scale, row = 30, 0.068, 84
    bottom = 44 + row * len(TIMELINES)

    def at(ms: int) -> float:
        return round(left + scale * ms, 1)

    drawn = [
        _dot(left + 5, 20, 0), _text(left + 16, 24, "a send", "small soft"),
        _flag(left + 90, 25, 0), _text(left + 108, 24, "a delivery, and how many sends it stands for", "small soft"),
        _cross(left + 388, 20), _text(left + 398, 24, "a send that is dropped", "small soft"),
    ]  # fmt: skip
    for second in range(12):
        drawn.append(f'<line class="line" x1="{at(1000 * second)}" y1="40" x2="{at(1000 * second)}" y2="{bottom}"/>')
        drawn.append(_text(at(1000 * second), bottom + 16, f"{second} s", "small soft", "middle"))
    for number, timeline in enumerate(TIMELINES):
        top = 44 + row * number
        drawn.append(f'<rect class="page" x="{left + 2}" y="{top + 4}" width="{WIDTH - left - 10}" height="22"/>')
        drawn.append(_text(left + 6, top + 20, timeline.title, "head mono"))
        drawn.append(_text(left + 14 + 8 * len(timeline.title), top + 20, timeline.words, "small soft"))
        drawn.append(f'<line class="line" x1="{left}" y1="{top + 58}" x2="{WIDTH - 30}" y2="{top + 58}"/>')
        sent = iter([ms for ms in SENDS_MS if ms not in timeline.dropped])
        for turn, (due_ms, count) in enumerate(timeline.deliveries):
            merged, colour = [next(sent) for _ in range(count)], turn % 2
            width = max(0.0, round(at(due_ms) - at(merged[0]), 1))
            drawn.append(
                f'<rect class="band{colour}" x="{at(merged[0])}" y="{top + 51}" width="{width}" height="14" rx="3"/>'
            )
            drawn += [_dot(at(ms), top + 58, colour) for ms in merged]
            drawn += [_flag(at(due_ms), top + 66, colour), _text(at(due_ms) + 13, top + 44, f"{count}", "small head")]
        drawn += [_cross(at(ms), top + 58) for ms in timeline.dropped]
    return _picture(bottom + 28, "What windows make of the same nine sends of one content", drawn)


def reducers() -> str:
    """Return the picture of reducers: three sends and the value of the delivery that they become."""
    row, top = 38, 40
    columns = (30, 222, 348, 474, 640)
    heads = ("reduce=", "first send", "second send", "third send", "the delivery's value")
    drawn = [_text(x, 26, head, "small soft") for x, head in zip(columns, heads, strict=True)]
    for number, folding in enumerate(FOLDINGS):
        y = top + row * number
        drawn.append(_text(columns[0], y + 20, folding.title, "head mono"))
        for x, body, version in zip(columns[1:4], folding.bodies, folding.versions, strict=True):
            drawn.append(_box(x, y, 114, _shown(body) + ("" if version is None else f", version {version}")))
        drawn.append(f'<path class="arrow" d="M594 {y + 15} h34 m-6 -5 l6 5 l-6 5"/>')
        drawn.append(_box(columns[4], y, 150, _shown(folding.value)))
    return _picture(top + row * len(FOLDINGS) + 10, "What reducers keep of three sends of one content", drawn)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def _dot(x: float, y: float, colour: int) -> str:
    return f'<circle class="fill{colour}" cx="{x:g}" cy="{y:g}" r="4.5"/>'


def _flag(x: float, y: float, colour: int) -> str:
    """Return a flag whose staff stands at a point, 32 high."""
    high = y - (32 if y > 30 else 14)
    return f'<path class="fill{colour}" d="M{x:g} {y:g} v{high - y:g} l10 4.5 l-8.5 4.5 v{y - high - 9:g} z"/>'


def _cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x - 4:g} {y - 4:g} l8 8 m0 -8 l-8 8"/>'


def _box(x: float, y: float, width: float, words: str) -> str:
    box = f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="30" rx="5"/>'
    return box + _text(x + width / 2, y + 20, words, "mono", "middle")


def _picture(height: float, title: str, drawn: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="8"/>',
        *drawn,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


PICTURES = {"windows.svg": windows, "reducers.svg": reducers}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
