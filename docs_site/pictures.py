"""Draws the pictures of the home page and of the topic types; `docs_site.diagrams` writes them into docs/pictures/."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

WIDTH = 760
STYLE = """
  text { font: 14px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
  .head { font-weight: 600; } .soft { fill: #59636e; font-size: 13px; }
  .mono { font-family: ui-monospace, 'SF Mono', Menlo, Consolas, monospace; font-size: 13px; }
  .page { fill: #ffffff; } .box { fill: #f6f8fa; stroke: #d1d9e0; } .line { stroke: #818b98; stroke-width: 1.5; }
  .dot { fill: #0969da; } .other { fill: #bc4c00; } .band { fill: #0969da26; } .tip { fill: #818b98; }
  .arrow { stroke: #818b98; stroke-width: 1.5; fill: none; } .cross { stroke: #bc4c00; stroke-width: 2; }
  .life { stroke: #d1d9e0; stroke-width: 1.5; } .note { fill: #fff8c5; stroke: #d4a72c66; }
  .frame { fill: none; stroke: #818b98; } .case { font-style: italic; }
  .over { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round; }
  @media (prefers-color-scheme: dark) {
    .life { stroke: #3d444d; } .note { fill: #272115; stroke: #bb800966; } .over { stroke: #0d1117; }
    text { fill: #f0f6fc; } .soft { fill: #9198a1; } .page { fill: #0d1117; } .box { fill: #151b23; stroke: #3d444d; }
    .dot { fill: #4493f8; } .other { fill: #f0883e; } .band { fill: #4493f833; } .cross { stroke: #f0883e; }
  }
"""


def write(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a box with round corners."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>'


def dot(x: float, y: float, kind: str = "dot") -> str:
    """Return a dot: a send."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="5.5" class="{kind}"/>'


def flag(x: float, y: float, kind: str = "dot") -> str:
    """Return a flag: a delivery."""
    return f'<path d="M{x:g} {y:g} v-26 l16 7 l-14 7 v12 z" class="{kind}"/>'


def arrow(*points: tuple[float, float]) -> str:
    """Return a line with a tip at its end, whichever way it runs there."""
    (x0, y0), (x, y) = points[-2:]
    along = 1 if x + y > x0 + y0 else -1
    tip = f"M{x:g} {y:g} l{-8 * along} -4.5 v9 z" if y0 == y else f"M{x:g} {y:g} l-4.5 {-8 * along} h9 z"
    path = "M" + " L".join(f"{a:g} {b:g}" for a, b in points)
    return f'<path d="{path}" class="arrow"/><path d="{tip}" class="tip"/>'


def both_ways(start: float, end: float, y: float) -> list[str]:
    """Return a level line with tips at both ends."""
    middle = (start + end) / 2
    return [arrow((middle, y), (end, y)), arrow((middle, y), (start, y))]


def axis(y: float, marks: dict[float, str]) -> str:
    """Return a time axis with words below it."""
    ticks = "".join(
        f'<path d="M{x:g} {y - 4:g} v8" class="line"/>' + write(x, y + 20, words, "soft", "middle")
        for x, words in marks.items()
    )
    return arrow((20, y), (740, y)) + ticks


def picture(title: str, height: int, *parts: str, width: int = WIDTH) -> str:
    """Return a whole picture."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    space = f'xmlns="http://www.w3.org/2000/svg" {size}'
    head = f'<svg {space} role="img" aria-label="{escape(title)}">'
    ground = f'<rect width="{width}" height="{height}" rx="8" class="page"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""])


def overview() -> str:
    """Draw what RMQ does, from sends to handlers."""
    sends = [
        "item:42 at 4.99",
        "item:42 at 5.49",
        "item:42 at 5.19",
        "letter to ann, 20",
        "letter to bob, 900",
        "order:7 at 14:30",
    ]
    rows = [
        ("item:42", "three sends, one message: merged"),
        ("letter to bob", "before ann: larger priority"),
        ("order:7", "not before 14:30"),
    ]
    parts = [
        write(20, 30, "Many sends", "head"),
        write(235, 30, "One backlog, in Redis", "head"),
        write(575, 30, "Handlers", "head"),
    ]
    for number, words in enumerate(sends):
        y = 62 + number * 30
        parts += [
            dot(27, y - 4.5, "dot" if number < 3 else "other"),
            write(42, y, words, "mono"),
            arrow((195, y - 4), (228, y - 4)),
        ]
    parts.append(box(235, 42, 290, 186))
    for number, (name, words) in enumerate(rows):
        parts += [write(252, 72 + number * 56, name, "mono"), write(252, 92 + number * 56, words, "soft")]
    for number, words in enumerate(("worker 1", "worker 2", "worker 3")):
        y = 48 + number * 60
        parts += [box(575, y, 165, 44), write(657, y + 27, words, "", "middle"), arrow((530, y + 22), (568, y + 22))]
    parts += [
        write(575, 246, "never two handlers on", "soft"), write(575, 264, "the same item at once", "soft"),
        write(235, 252, "Failed messages wait, are retried, and are", "soft"),
        write(235, 270, "kept as dead letters in the end.", "soft"),
    ]  # fmt: skip
    return picture("Many sends become few messages, which handlers get in order and when they are due", 285, *parts)


def range_merge() -> str:
    """Draw three sends that become one delivery, and a later one."""
    parts = [
        write(20, 28, "RANGE_MERGE: all sends of one content within the window are one delivery", "head"),
        box(90, 62, 300, 40, "band"), write(240, 56, "time_range, from the first send", "soft", "middle"),
        dot(90, 82), dot(180, 82), dot(300, 82), flag(390, 102), write(412, 88, "item:42, 3 sends"),
        dot(560, 82), flag(720, 102), box(560, 62, 160, 40, "band"),
        write(640, 56, "the next window", "soft", "middle"),
        axis(125, {90: "0 s", 240: "2.5 s", 390: "5 s", 560: "8 s"}),
    ]  # fmt: skip
    return picture("RANGE_MERGE: three sends within a window are one delivery at its end", 160, *parts)


def priority() -> str:
    """Draw sends in their order, and the order of deliveries."""
    sends = (("a", 1), ("b", 5), ("c", 5), ("a", 9))
    order = (("a", "9", "its last priority"), ("b", "5", "older than c"), ("c", "5", ""))
    parts = [
        write(20, 28, "PRIORITY: the largest first, ties go to the oldest", "head"),
        write(20, 62, "sends, in this order", "soft"),
    ]
    for number, (name, rank) in enumerate(sends):
        x = 30 + number * 80
        parts += [box(x - 10, 76, 66, 34), write(x + 23, 98, f"{name}: {rank}", "mono", "middle")]
    parts += [arrow((350, 93), (396, 93)), write(410, 62, "deliveries", "soft")]
    for number, (name, rank, why) in enumerate(order):
        x = 410 + number * 115
        parts += [
            box(x, 76, 66, 34),
            write(x + 33, 98, f"{name}: {rank}", "mono", "middle"),
            write(x + 33, 130, why, "soft", "middle"),
        ]
    return picture("PRIORITY: the largest priority first; sending again changes it", 150, *parts)


def fixed_time() -> str:
    """Draw a message whose time moves, and one that is cancelled."""
    parts = [
        write(20, 28, "FIXED_TIME: not before its time; the last send decides, cancel removes it", "head"),
        write(20, 72, "order:7", "mono"), dot(120, 68), write(135, 62, "for 14:30", "soft"), dot(250, 68),
        write(265, 62, "for 14:40", "soft"), flag(640, 80), write(560, 60, "delivered", "soft"),
        write(20, 112, "order:8", "mono"), dot(160, 108), write(175, 102, "for 14:30", "soft"),
        '<path d="M354 102 l12 12 m0 -12 l-12 12" class="cross"/>', write(375, 112, "cancelled: it was paid", "soft"),
        axis(140, {120: "14:00", 460: "14:30", 640: "14:40"}),
    ]  # fmt: skip
    return picture("FIXED_TIME: delivered at the last time that was sent, unless it is cancelled", 172, *parts)


def stream() -> str:
    """Draw a log with two groups that read it at their own pace."""
    parts = [write(20, 28, "STREAM: a log; each group gets every entry, in the order of sending", "head")]
    for number in range(8):
        x = 60 + number * 80
        parts += [box(x, 78, 66, 34), write(x + 33, 100, f"entry {number + 1}", "soft", "middle")]
    for x, words, y in (
        (60 + 5 * 80 + 33, "group billing: acked up to 5, has 6 in flight", 60),
        (60 + 2 * 80 + 33, "group mail: reads 3", 150),
    ):
        parts.append(write(x, y, words, "", "middle"))
    parts += [
        arrow((493, 64), (493, 76)),
        '<path d="M253 132 v-14" class="arrow"/><path d="M253 113 l-4.5 8 h9 z" class="tip"/>',
    ]
    return picture("STREAM: entries stay in a log, which each group reads at its own pace", 165, *parts)


PICTURES: dict[str, Callable[[], str]] = {
    "overview": overview, "range_merge": range_merge, "priority": priority, "fixed_time": fixed_time, "stream": stream,
}  # fmt: skip
